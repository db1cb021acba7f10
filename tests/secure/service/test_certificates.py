"""Tests the certificates of each party, and that no party, nor the authority, can impersonate a server."""

import datetime
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import ChannelError
from dpaudit.secure.service import certificates, spgc_pb2
from dpaudit.secure.service.owner import Owner
from tests.secure.certificates import Authority
from tests.secure.servers import OWNERS, integers, terms, total
from tests.secure.serving import owners, pair, send, share_of, until

DAY = datetime.timedelta(days=1)


def forged(trust: Authority, name: str) -> certificates.Tls:
    """Makes what the authority's key allows: a new certificate for a name."""
    certificate, key = certificates.issue(
        certificates.read_authority(trust.folder / certificates.AUTHORITY), [name], DAY
    )
    return trust.tls("bob")._replace(certificate=certificate, key=key)


def test_each_party_has_its_own_key_and_all_have_both_servers_certificates(tmp_path: Path) -> None:
    made = certificates.make(tmp_path / "keys", OWNERS)
    assert made == ["h1", "h2", *OWNERS]
    parties = {name: certificates.read(tmp_path / "keys" / name, name=name) for name in made}
    assert len({one.key for one in parties.values()}) == len(made)
    assert {one.servers for one in parties.values()} == {(parties["h1"].certificate, parties["h2"].certificate)}
    for path in (tmp_path / "keys").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        assert path.name in ("ca.key", f"{path.parent.name}.key") or path.suffix != ".key"


def test_more_owners_are_made_later_and_nothing_else_is_changed(tmp_path: Path) -> None:
    certificates.make(tmp_path, OWNERS)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert certificates.make(tmp_path, [*OWNERS, "dave"]) == ["dave"]
    assert {path: path.read_bytes() for path in before} == before
    assert (
        certificates.read(tmp_path / "dave", name="dave").servers
        == certificates.read(tmp_path / "bob", name="bob").servers
    )


def test_keys_whose_making_was_interrupted_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each file and folder that is put in its place."""
    rename, left = Path.rename, 0

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    for moment in range(100):
        left, keys = moment, tmp_path / str(moment)
        with suppress(KeyboardInterrupt):
            certificates.make(keys, [])
            break
        left = 100
        certificates.make(keys, ["bob"])
        assert {path.name for path in keys.iterdir()} == {"authority", "h1", "h2", "bob"}
        assert len({certificates.read(keys / name, name=name).servers for name in ("h1", "h2", "bob")}) == 1
    assert moment > 10


def test_servers_that_are_not_each_other_s_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = r"^keys: expected folders of h1 and h2 with each other's certificates, or none but the .*, got keys$"
    certificates.make("keys", ["bob"])
    (tmp_path / "keys" / "h2").rename(tmp_path / "lost")
    with pytest.raises(_validate.InputError, match=refused):
        certificates.make("keys", ["bob", "carol"])
    certificates.make("others", [])
    (tmp_path / "others" / "h2").rename(tmp_path / "keys" / "h2")
    with pytest.raises(_validate.InputError, match=refused):
        certificates.make("keys", ["bob", "carol"])
    assert not (tmp_path / "keys" / "carol").exists()


def test_what_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    for name in ("h1", "authority", "A"):
        with pytest.raises(_validate.InputError, match=r"^owner: expected "):
            certificates.make(tmp_path / "keys", [name])
    with pytest.raises(_validate.InputError, match=r"^days: expected a whole number >= 1, got 0$"):
        certificates.make(tmp_path / "keys", OWNERS, days=0)
    for days in (3_000_000, 10**7, 10**12):
        with pytest.raises(_validate.InputError, match=rf"^days: expected at most 29\d{{5}}, got {days}$"):
            certificates.make(tmp_path / "keys", OWNERS, days=days)
    (tmp_path / "file").touch()
    with pytest.raises(_validate.InputError, match=r"^keys: expected a folder to write to, got .*file"):
        certificates.make(tmp_path / "file", OWNERS)
    certificates.make(tmp_path / "keys", OWNERS)
    for content in (b"", (tmp_path / "keys" / "bob" / "bob.key").read_bytes()):
        (tmp_path / "keys" / "authority" / "ca.key").write_bytes(content)
        with pytest.raises(_validate.InputError, match=r"^keys: expected "):
            certificates.make(tmp_path / "keys", ["dave"])


def test_files_that_do_not_fit_are_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for short names: a line repeats so much of a value and no more
    trust = Authority(Path("keys"))
    authority = certificates.read_authority(Path("keys/authority"))
    two, _ = certificates.issue(authority, ["bob", "carol"], DAY)
    h1, h2 = trust.tls("h1"), trust.tls("h2")
    for file, content, message in [
        ("bob.pem", trust.tls("carol").certificate, r"^keys: expected the key to bob\.pem, got keys/bob/bob\.key$"),
        ("bob.pem", b"", r"^keys: expected PEM files, the key without a password, got "),
        ("bob.key", b"", r"^keys: expected PEM files, the key without a password, got "),
        ("bob.key", h1.key, r"^keys: expected the key to bob\.pem, got keys/bob/bob\.key$"),
        ("h1.pem", h2.certificate, r"^h1\.pem: expected a certificate for the DNS name 'h1' alone, got \['h2'\]$"),
        ("h2.pem", two, r"^h2\.pem: expected a certificate for the DNS name 'h2' alone, got \['bob', 'carol'\]$"),
        ("ca.pem", None, r"^keys: expected files of bob, got keys/bob/ca\.pem \(No such file or directory\)$"),
    ]:
        path = Path("keys/bob") / file
        kept = path.read_bytes()
        path.write_bytes(content) if content is not None else path.unlink()
        with pytest.raises(_validate.InputError, match=message):
            trust.tls("bob")
        path.write_bytes(kept)
    with pytest.raises(
        _validate.InputError, match=r"^keys: expected files of carol, got keys/bob/carol\.pem \(No such"
    ):
        certificates.read("keys/bob", name="carol")
    trust.tls("bob")


def test_servers_of_one_key_are_refused(tmp_path: Path) -> None:
    trust = Authority(tmp_path)
    authority = certificates.read_authority(tmp_path / certificates.AUTHORITY)
    ours = certificates.load_pem_private_key(trust.tls("h1").key, None)
    assert isinstance(ours, certificates.ec.EllipticCurvePrivateKey)
    twin = certificates._builder("h2", authority.certificate.subject, ours, DAY)
    twin = twin.add_extension(
        certificates.x509.SubjectAlternativeName([certificates.x509.DNSName("h2")]), critical=False
    )
    (tmp_path / "bob" / "h2.pem").write_bytes(
        certificates._pem(twin.sign(authority.key, certificates.hashes.SHA256()))
    )
    with pytest.raises(
        _validate.InputError, match=r"^h1\.pem, h2\.pem: expected certificates of two servers, got those of"
    ):
        trust.tls("bob")


def test_only_the_party_named_in_a_certificate_is_let_in(tmp_path: Path) -> None:
    mine, lines = terms("plain"), []
    trust, strange = Authority(tmp_path / "trust"), Authority(tmp_path / "strange")
    with pair(tmp_path, mine, lines.append, trust=trust) as both:
        until(lambda: sum(line.startswith("session with") for line in lines) == 2)
        port = both[0].port
        with pytest.raises(grpc.RpcError, match=r"certificate: expected one for 'bob', got \['alice'\]"):
            send(port, share_of(mine), trust.tls("alice"))
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            send(port, share_of(mine), strange.tls("bob"))
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            send(port, share_of(mine))
        swapped = both[1], both[0]  # h1 and h2 of the wrong names: an owner must not give one server both shares
        with owners(swapped, mine, "bob", trust=trust) as (bob,), pytest.raises(ChannelError, match=r"^h1: "):
            bob.submit(1, integers(1)["bob"], seconds=5)
        with certificates.call(f"127.0.0.1:{both[1].port}", "h2", trust.tls("alice")) as connection:
            exchange = connection.stream_stream("/dpaudit.secure.Peer/Exchange", spgc_pb2.Frame.SerializeToString)
            for _ in range(2):
                with pytest.raises(grpc.RpcError, match=r"certificate: expected one for 'h1', got \['alice'\]"):
                    next(exchange(iter([spgc_pb2.Frame(data=b"!")])))
            assert lines.count("ipv4:127.0.0.1 is refused: certificate: expected one for 'h1', got ['alice']") == 1
        with owners(both, mine, *OWNERS, trust=trust) as all_of:
            for one, values in zip(all_of, integers(1).values(), strict=True):
                one.submit(1, values)
            np.testing.assert_array_equal(all_of[0].result(1).values, total(1))


def test_who_has_the_authority_s_key_is_no_server(tmp_path: Path) -> None:
    """It cannot be H1 to H2, nor H2 to an owner, where it would get both shares together with the true H1."""
    mine, told = terms("plain"), []
    trust = Authority(tmp_path / "trust")
    with pair(tmp_path, mine, told.append, trust=trust) as both:
        with certificates.call(f"127.0.0.1:{both[1].port}", "h2", forged(trust, "h1")) as connection:
            exchange = connection.stream_stream("/dpaudit.secure.Peer/Exchange", spgc_pb2.Frame.SerializeToString)
            with pytest.raises(grpc.RpcError, match="certificate: expected h1's own, got another one for 'h1'"):
                next(exchange(iter([spgc_pb2.Frame(data=b"!")])))
        false = grpc.server(ThreadPoolExecutor(1))
        port = certificates.listen(false, "127.0.0.1:0", forged(trust, "h2"))
        false.start()
        bob = Owner("bob", mine, (f"127.0.0.1:{both[0].port}", f"127.0.0.1:{port}"), own=trust.tls("bob"))
        with pytest.raises(ChannelError, match=r"^h2: .*CERTIFICATE_VERIFY_FAILED"):
            bob.submit(1, integers(1)["bob"], seconds=10)
        bob.close()
        false.stop(0)
    assert any("is refused: certificate: expected h1's own" in line for line in told)
