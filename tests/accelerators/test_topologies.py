"""What compiles for accelerators says what is missing, in one line."""

from importlib import metadata

import pytest

from dpaudit import _platform, _validate
from dpaudit._engine import topologies

CUDA = "jax-cuda12-plugin", "jax_cuda12_plugin", "cuda12-local"


def version_of(installed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.version

    def version(package: str) -> str:
        if package == "jax":
            return known(package)
        if installed is None:
            raise metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(topologies.util, "find_spec", lambda module: object())


def test_wheels_that_fit_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    version_of(metadata.version("jax"), monkeypatch)
    assert topologies.refuse_unfit(*CUDA) is None


@pytest.mark.parametrize(("installed", "got"), [("0.6.1", "got 0.6.1"), (None, "got none: run `make acc")])
def test_wheels_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch, installed: str | None, got: str) -> None:
    version_of(installed, monkeypatch)
    with pytest.raises(_validate.InputError, match=r"^wheels: expected jax-cuda12-plugin<?=") as refused:
        topologies.refuse_unfit(*CUDA)
    assert got in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_platform_is_named_for_what_is_inside() -> None:
    before = _platform.current()
    with _platform.named("tpu", memory_bytes=1e9):
        assert (_platform.current(), _platform.memory_bytes()) == ("tpu", 1e9)
    assert (_platform.current(), _platform.memory_bytes()) == (before, None)
    with (
        pytest.raises(_validate.InputError, match="platform: expected cpu or gpu or tpu, got cuda"),
        _platform.named("cuda"),
    ):
        pass


def test_bytes_that_a_program_wanted_are_read() -> None:
    said = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in hbm. Used 21.50G of 15"
    assert topologies._wanted(said) == 21.5 * (1 << 30)
    assert topologies._wanted("RESOURCE_EXHAUSTED: out of memory") is None
