"""Makes certificates for the parties of a test, as ``dpaudit secure keys`` does."""

from pathlib import Path

from dpaudit.secure.service import certificates
from dpaudit.secure.service.certificates import Tls
from tests.secure.servers import OWNERS


class Authority:
    """Makes the folders of both servers and the owners in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        certificates.make(folder, OWNERS, days=1)

    def tls(self, name: str) -> Tls:
        """Reads the files of a party."""
        return certificates.read(self.folder / name, name=name)
