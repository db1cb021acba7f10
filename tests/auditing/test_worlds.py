"""Mechanisms that call LAPACK end on every number of threads and devices, or are refused in one line."""

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import check, hosts, play
from dpaudit.auditing import worlds
from tests import processes

TRIALS = 20_001


def release(key: jax.Array, world: int) -> jax.Array:
    root = jax.random.normal(key, (8, 8))
    return jnp.linalg.cholesky(root @ root.T + (1 + world) * jnp.eye(8))


def played() -> list[list[float]] | str:
    """Scores of a trial that factorizes a matrix in either world, on all devices, or why not."""
    try:
        return play(jax.random.key(3), release, jnp.sum, TRIALS, mesh=hosts.mesh("trials")).tolist()
    except check.InputError as error:
        return str(error)


def played_with(threads: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> list[list[float]] | str:
    monkeypatch.setattr(processes, "threads", lambda devices: threads)
    process = processes.start("tests.auditing.test_worlds", "played", devices=devices)
    try:
        return processes.said(process, seconds=120)
    except subprocess.TimeoutExpired:
        pytest.fail("trials wait for each other")


def test_two_threads_are_enough_for_either_world(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = played_with(2, 1, monkeypatch)
    assert np.shape(alone) == (2, TRIALS)
    assert played_with(4, 2, monkeypatch) == alone


@pytest.mark.skipif(not worlds.WAITING, reason="this jaxlib's LAPACK does not wait for threads")
def test_devices_without_threads_of_their_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = played_with(2, 2, monkeypatch)
    assert isinstance(refused, str)
    assert refused.startswith("mesh: expected fewer CPU devices than threads (2)")
    assert "NPROC=4" in refused


def test_worlds_in_turn_are_what_they_are_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    each = tuple(lambda key, world=world: jnp.sum(release(key, world)) for world in (0, 1))
    keys = jax.random.split(jax.random.key(5))
    in_turn = worlds.both(each, keys)
    monkeypatch.setattr(worlds, "WAITING", False)
    np.testing.assert_allclose(in_turn, worlds.both(each, keys), rtol=1e-6)
