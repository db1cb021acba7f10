"""Makes what the parties of a training prove with who they are: an authority, and a folder of files for each party.

The folder of a party has its certificate and key, the authority's certificate (``ca.pem``) and both servers' own
(``h1.pem``, ``h2.pem``): each is pinned, so that not even who has the authority's key can take a server's place, or
both. With that key one can pass for an owner; it is needed for new owners alone, and is best kept off every machine.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from dpaudit import check
from dpaudit.secure import private, tls

AUTHORITY = "authority"
_EARLY = datetime.timedelta(hours=1)  # for clocks that are behind


class Authority(NamedTuple):
    """Who signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make(folder: str | Path, owners: Sequence[str], *, days: int = 365) -> list[str]:
    """Makes the folders of both servers and of these owners, and an authority, where they are not there yet.

    Args:
      folder: takes a folder for each party, under its name, and one for the authority.
      owners: their names.
      days: for how long certificates are valid.

    Returns:
      Names of the parties whose folders were made.

    Raises:
      InputError: a name that is no owner's, or a folder that cannot be written to, or whose authority cannot be read.
    """
    for owner in owners:
        if tls.checked_name(owner=owner) == AUTHORITY:
            raise check.expected("owner", f"a name other than {AUTHORITY}", owner)
    life = datetime.timedelta(days=check.at_least(1, days=days))
    base = Path(folder)
    try:
        private.folder(base)
        authority = _authority(base / AUTHORITY, life)
        new = [name for name in (*tls.SERVERS, *owners) if not (base / name).exists()]
        made = {name: issue(authority, [name], life) for name in new}
        pins = {
            f"{name}.pem": made[name][0] if name in made else (base / name / f"{name}.pem").read_bytes()
            for name in tls.SERVERS
        }
        for name, (certificate, key) in made.items():
            files = pins | {"ca.pem": _pem(authority.certificate), f"{name}.pem": certificate, f"{name}.key": key}
            partial = base / f".{name}.new"
            private.folder(partial)
            for file, data in files.items():
                private.put(partial / file, data)
            partial.rename(base / name)
    except OSError as fault:
        raise check.expected("keys", "a folder to write to", f"{fault.filename} ({fault.strerror})") from None
    return new


def issue(authority: Authority, names: Sequence[str], life: datetime.timedelta) -> tuple[bytes, bytes]:
    """A new certificate for these DNS names and the key to it, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = _builder(names[0], authority.certificate.subject, key, life).add_extension(alternatives, critical=False)
    return _pem(builder.sign(authority.key, hashes.SHA256())), _private(key)


def read_authority(folder: Path) -> Authority:
    """The authority whose files are in a folder; InputError if they are none."""
    try:
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except (ValueError, TypeError) as fault:
        raise check.expected("keys", "PEM files of an authority", f"{folder} ({fault})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise check.expected("keys", "the key to the authority's certificate", folder)
    return Authority(certificate, key)


def _authority(folder: Path, life: datetime.timedelta) -> Authority:
    if not folder.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpaudit secure authority")])
        builder = _builder("dpaudit secure authority", name, key, life)
        own = builder.add_extension(x509.BasicConstraints(True, 0), critical=True).sign(key, hashes.SHA256())
        private.folder(folder)
        private.put(folder / "ca.key", _private(key))
        private.put(folder / "ca.pem", _pem(own))
    return read_authority(folder)


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(now - _EARLY).not_valid_after(now + life)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
