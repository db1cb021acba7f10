"""Tests the public names of dpaudit.secure and of its rooms."""

import importlib
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from dpaudit import secure
from dpaudit.secure import certificates
from dpaudit.secure.protocol.prepared import Pair
from dpaudit.secure.protocol.transfer_noise import Share
from dpaudit.secure.protocol.two_server_sum import Garbled, Received
from dpaudit.secure.service.owner import _Split

PUBLIC = [
    "Binomial",
    "ChannelError",
    "Owner",
    "Server",
    "Terms",
    "accounting",
    "binomial",
    "certificates",
    "dequantize",
]
PUBLIC += ["gaussian", "lookup", "quantize", "quantized_sum", "schemes", "shares", "terms"]


def test_the_public_names_are_these() -> None:
    assert secure.__all__ == PUBLIC


@pytest.mark.parametrize("room", ["", ".circuits", ".crypto", ".noise", ".protocol", ".service"])
def test_every_public_name_can_be_loaded(room: str) -> None:
    package = importlib.import_module(f"dpaudit.secure{room}")
    assert package.__doc__
    assert package.__all__
    for name in package.__all__:
        value = getattr(package, name)
        assert isinstance(value, ModuleType) or value.__name__ == name
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        package.absent  # noqa: B018


@pytest.mark.parametrize(
    "held",
    [
        certificates.Tls(b"17", b"17", b"17", (b"17", b"17")),
        Pair(b"17", b"17"),
        Garbled(*[np.full(3, 17)] * 3),
        Received(np.full(3, 17), np.full(3, 17), [np.full(3, 17)]),
        Share(np.full(3, 17)),
        _Split(17, np.full(3, 17), b"17", (b"17", b"17")),
    ],
    ids=lambda held: type(held).__name__,
)
def test_what_holds_secrets_does_not_show_them(held: object) -> None:
    assert f"{held}" == f"{held!r}" == f"{type(held).__name__}(...)"


def test_importing_the_room_loads_no_library_of_its_service() -> None:
    script = "import sys, dpaudit.secure; assert not {'grpc', 'cryptography'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
