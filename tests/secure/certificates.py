"""Certificates for a test's parties, signed by an authority of the test's own."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dpaudit.secure import tls
from dpaudit.secure.tls import Tls


class Authority:
    """Signs certificates; ``folder`` takes the files."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        folder.mkdir()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        own = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        self.file = self._write("ca.pem", own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def files(self, *names: str) -> tuple[str, str, str]:
        """Certificate, key and the authority's certificate, for a party of these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        signed = self._builder(subject, key).add_extension(alternatives, critical=False)
        certificate = signed.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        stem = "-".join(names)
        return self._write(f"{stem}.pem", certificate), self._write(f"{stem}.key", private), self.file

    def tls(self, name: str) -> Tls:
        """The same, read."""
        return tls.read(*self.files(name), name=name)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        return builder.not_valid_before(now - day).not_valid_after(now + day)

    def _write(self, name: str, data: bytes) -> str:
        path = self._folder / name
        path.write_bytes(data)
        return str(path)
