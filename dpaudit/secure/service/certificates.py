"""Makes the certificates of a training's parties, and connects the parties by mutual TLS.

H1's certificate is for the DNS name ``h1``, H2's for ``h2`` and an owner's for the owner's name, whatever machines
they run on. An owner's is signed by the authority (CA); the two servers' are pinned: every party has both and accepts
no other in their place, whoever has signed it. So an owner cannot impersonate a server or another owner, and the
authority cannot impersonate a server. Without certificates nothing is encrypted and every party is believed.

:func:`make` makes a folder for each party, with its certificate and key, the authority's certificate (``ca.pem``) and
both servers' own (``h1.pem``, ``h2.pem``). With the authority's key one can impersonate owners. It is needed only to
add owners and is best stored off every machine that takes part.
"""

import datetime
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dpaudit import _validate
from dpaudit.secure.crypto.randomness import unshown
from dpaudit.secure.protocol import storage
from dpaudit.secure.protocol.agreement import SERVERS, checked_name

with _validate.extra("secure"):
    import grpc
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

PIECE = 1 << 20  # bytes in a frame between the servers
_MORE = 1 << 17  # bytes in a message besides its values
_WINDOW = 8 << 20  # bytes of a stream on their way
_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_metadata_size", 8192),
    ("grpc.so_reuseport", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # a peer that vanished is noticed after 15 seconds
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.bdp_probe", 0),  # its ping with every message takes a fifth of an owner's call on either side
    ("grpc.http2.lookahead_bytes", _WINDOW),  # which it would find
]


class Tls(NamedTuple):
    """A party's certificate and its key, the authority's certificate, and both servers' certificates, PEM."""

    certificate: bytes
    key: bytes
    authority: bytes
    servers: tuple[bytes, bytes]
    __repr__ = unshown


def read(folder: str | Path, *, name: str) -> Tls:
    """Reads the files of the party of this name, as :func:`make` wrote them.

    Raises:
      InputError: a file cannot be read or parsed, a key belongs to another certificate, a name differs, or both
        servers have one key.
    """
    base = Path(folder)
    paths = [
        base / file for file in (f"{name}.pem", f"{name}.key", "ca.pem", *(f"{server}.pem" for server in SERVERS))
    ]
    try:
        certificate, key, authority, *pins = (path.read_bytes() for path in paths)
    except OSError as fault:
        raise _validate.expected("keys", f"files of {name}", f"{fault.filename} ({fault.strerror})") from None
    try:
        own, _, *servers = (x509.load_pem_x509_certificate(data) for data in (certificate, authority, *pins))
        fits = load_pem_private_key(key, None).public_key() == own.public_key()
        carried = [_names(one) for one in (own, *servers)]
    except (ValueError, TypeError, x509.ExtensionNotFound) as fault:
        raise _validate.expected("keys", "PEM files, the key without a password", f"{base} ({fault})") from None
    if not fits:
        raise _validate.expected("keys", f"the key to {paths[0].name}", paths[1])
    for wanted, found in zip((name, *SERVERS), carried, strict=True):
        if found != [wanted]:
            raise _validate.expected(f"{wanted}.pem", f"a certificate for the DNS name {wanted!r} alone", found)
    if servers[0].public_key() == servers[1].public_key():
        raise _validate.expected("h1.pem, h2.pem", "certificates of two servers", "those of one key")
    return Tls(certificate, key, authority, (pins[0], pins[1]))


def _names(certificate: x509.Certificate) -> list[str]:
    """Lists the DNS names of a certificate."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


def require(context: grpc.ServicerContext, name: str, tls: Tls | None, log: Callable[[str], None]) -> None:
    """Aborts and logs a call whose caller's certificate is not that of the party of this name."""
    if tls is None:
        return
    shown: Any = context.auth_context()
    line = ""
    if (carried := names(context)) != [name]:
        line = f"certificate: expected one for {name!r}, got {carried}"
    elif name in SERVERS and not _is(shown.get("x509_pem_cert", ()), tls.servers[SERVERS.index(name)]):
        line = f"certificate: expected {name}'s own, got another one for {name!r}"
    if line:
        log(f"{host(context)} is refused: {line}")
        context.abort(grpc.StatusCode.PERMISSION_DENIED, line)


def names(context: grpc.ServicerContext) -> list[str]:
    """Lists the names in a caller's certificate, which its authority has signed; none in the clear."""
    shown: Any = context.auth_context()
    return [carried.decode() for carried in shown.get("x509_subject_alternative_name", ())]


def _is(shown: Sequence[bytes], pinned: bytes) -> bool:
    """Tells whether the certificate that was shown is the pinned one."""
    shown_one, pin = (x509.load_pem_x509_certificate(pem) for pem in (b"".join(shown), pinned))
    return shown_one == pin


def host(context: grpc.ServicerContext) -> str:
    """Returns a caller's address without its port, which changes with every call."""
    return context.peer().rpartition(":")[0]


def options(values: int = PIECE) -> list[tuple[str, int]]:
    """Returns gRPC options for messages of so many bytes; a longer one is refused before memory is allocated."""
    longest = max(values, PIECE) + _MORE
    return [*_OPTIONS, ("grpc.max_receive_message_length", longest), ("grpc.max_send_message_length", longest)]


def listen(server: grpc.Server, address: str, tls: Tls | None, *, insecure: bool = False) -> int:
    """Makes a server listen at ``host:port`` and returns the port, chosen by the system for 0.

    Raises:
      InputError: the address cannot be used, or is beyond this machine, unencrypted and without ``insecure``.
    """
    _checked("listen", address, tls, insecure)
    try:
        if tls is None:
            return server.add_insecure_port(address)
        pairs = [(tls.key, tls.certificate)]
        trusted = grpc.ssl_server_credentials(pairs, tls.authority, require_client_auth=True)
        return server.add_secure_port(address, trusted)
    except RuntimeError:
        raise _validate.expected("listen", "an address of this machine with a free port", address) from None


def call(address: str, name: str, tls: Tls | None, *, insecure: bool = False, values: int = PIECE) -> grpc.Channel:
    """Connects, on first use, to the server of this name at ``host:port``; ``values`` as for :func:`options`.

    A loopback address is this machine's own: the environment's ``http_proxy`` does not lead such a call elsewhere.

    Raises:
      InputError: the address is malformed, or beyond this machine, unencrypted and without ``insecure``.
    """
    host = _checked(name, address, tls, insecure)
    chosen = [*options(values), ("grpc.enable_http_proxy", int(not is_loopback(host)))]
    if tls is None:
        return grpc.insecure_channel(address, chosen)
    own = grpc.ssl_channel_credentials(tls.servers[SERVERS.index(name)], tls.key, tls.certificate)  # trusts no other
    return grpc.secure_channel(address, own, [*chosen, ("grpc.ssl_target_name_override", name)])


def reason(fault: grpc.RpcError) -> str:
    """Returns why a call failed, in one line."""
    said = fault.details() if isinstance(fault, grpc.Call) else str(fault)
    return " ".join((said or "no reason given").split())


def checked_address(what: str, address: str) -> tuple[str, int]:
    """Splits ``host:port`` into host and port; InputError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise _validate.expected(what, "HOST:PORT", address)
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Tells whether a host is this machine itself."""
    return host in ("localhost", "[::1]") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host))


def _checked(what: str, address: str, tls: Tls | None, insecure: bool) -> str:
    """Returns the host of an address that may be used."""
    host, _ = checked_address(what, address)
    if tls is None and not is_loopback(host) and not insecure:
        raise _validate.expected(what, "certificates, a loopback address such as 127.0.0.1, or insecure", address)
    return host


# Making keys.

AUTHORITY = "authority"
_EARLY = datetime.timedelta(hours=1)  # tolerance for clocks that are slow


class Authority(NamedTuple):
    """The authority that signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make(folder: str | Path, owners: Sequence[str], *, days: int = 365) -> list[str]:
    """Makes the folders of both servers, of these owners and of the authority, where they do not exist yet.

    Args:
      folder: where to put a folder for each party, under its name, and one for the authority.
      owners: their names.
      days: how long certificates are valid.

    Returns:
      Names of the parties whose folders were made.

    Raises:
      InputError: a name cannot be an owner's, the folder cannot be written to, its authority cannot be read, or its
        servers' folders lack each other's certificates.
    """
    for owner in owners:
        if checked_name(owner=owner) == AUTHORITY:
            raise _validate.expected("owner", f"a name other than {AUTHORITY}", owner)
    left = datetime.datetime.max - datetime.datetime.now() - datetime.timedelta(days=1)  # dates end with the year 9999
    if _validate.at_least(1, days=days) > left.days:
        raise _validate.expected("days", f"at most {left.days}", days)
    life = datetime.timedelta(days=days)
    base = Path(folder)
    try:
        storage.folder(base)
        authority, pins = _authority(base / AUTHORITY, life), _pins(base)
        new = [name for name in (*SERVERS, *owners) if not (base / name).exists()]
        made = {name: issue(authority, [name], life) for name in new if f"{name}.pem" not in pins}
        pins = pins or {f"{name}.pem": made[name][0] for name in SERVERS}
        for name, (certificate, key) in made.items():
            files = pins | {"ca.pem": _pem(authority.certificate), f"{name}.pem": certificate, f"{name}.key": key}
            storage.folder(_partial(base, name))
            for file, data in files.items():
                storage.put(_partial(base, name) / file, data)
        storage.synchronise(base)
        for name in new:  # once all are whole: a server whose folder is there is pinned in the other's
            _partial(base, name).rename(base / name)
    except OSError as fault:
        raise _validate.expected("keys", "a folder to write to", f"{fault.filename} ({fault.strerror})") from None
    return new


def _partial(base: Path, name: str) -> Path:
    """Returns where a party's folder is until it is whole."""
    return base / f".{name}.new"


def _pins(base: Path) -> dict[str, bytes]:
    """Reads both servers' certificates from their folders, each of which has both; none if there is no folder yet.

    If :func:`make` was interrupted after the first server's folder was in place, the other's is whole but partial.
    """
    if not any((base / name).exists() for name in SERVERS):
        return {}
    found = []
    for name in SERVERS:
        folder = base / name
        if not folder.exists():
            folder = _partial(base, name)
            with suppress(_validate.InputError):
                found.append(read(folder, name=name).servers)
        else:
            found.append(tuple((folder / f"{each}.pem").read_bytes() for each in SERVERS))
    if found[1:] != found[:1]:
        wanted = "folders of h1 and h2 with each other's certificates, or none but the authority's"
        raise _validate.expected("keys", wanted, base)
    return {f"{name}.pem": pin for name, pin in zip(SERVERS, found[0], strict=True)}


def issue(authority: Authority, names: Sequence[str], life: datetime.timedelta) -> tuple[bytes, bytes]:
    """Issues a certificate for these DNS names; returns it and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = _builder(names[0], authority.certificate.subject, key, life).add_extension(alternatives, critical=False)
    return _pem(builder.sign(authority.key, hashes.SHA256())), _private(key)


def read_authority(folder: Path) -> Authority:
    """Reads the authority whose files are in a folder; InputError if they are not valid."""
    try:
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except (ValueError, TypeError) as fault:
        raise _validate.expected("keys", "PEM files of an authority", f"{folder} ({fault})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise _validate.expected("keys", "the key to the authority's certificate", folder)
    return Authority(certificate, key)


def _authority(folder: Path, life: datetime.timedelta) -> Authority:
    if not folder.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dpaudit secure authority")])
        builder = _builder("dpaudit secure authority", name, key, life)
        own = builder.add_extension(x509.BasicConstraints(True, 0), critical=True).sign(key, hashes.SHA256())
        partial = _partial(folder.parent, folder.name)
        storage.folder(partial)
        storage.put(partial / "ca.key", _private(key))
        storage.put(partial / "ca.pem", _pem(own))
        partial.rename(folder)
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
