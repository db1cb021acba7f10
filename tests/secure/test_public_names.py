"""Tests the public names of dpaudit.secure and of its rooms."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from dpaudit import secure

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


def test_importing_the_room_loads_no_library_of_its_service() -> None:
    script = "import sys, dpaudit.secure; assert not {'grpc', 'cryptography'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
