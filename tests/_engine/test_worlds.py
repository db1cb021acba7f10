"""Mechanisms that wait for threads end on every number of threads and devices, or are refused in one line."""

import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest

from dpaudit import _validate, play
from dpaudit._engine import hosts, worlds
from tests import processes

TRIALS = 20_001


def release(key: jax.Array, world: int) -> jax.Array:
    root = jax.random.normal(key, (8, 8))
    if worlds.BEFORE_0_11:
        return jnp.linalg.cholesky(root @ root.T + (1 + world) * jnp.eye(8))
    return jnp.abs(jnp.fft.fft(root + world))


def played() -> list[list[float]] | str:
    """Scores of a trial that factorizes or transforms a matrix in either world, on all devices, or why not."""
    try:
        return play(jax.random.key(3), release, jnp.sum, TRIALS, mesh=hosts.mesh("trials")).tolist()
    except _validate.InputError as error:
        return str(error)


def played_with(threads: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> list[list[float]] | str:
    monkeypatch.setattr(processes, "threads", lambda devices: threads)
    process = processes.start("tests._engine.test_worlds", "played", devices=devices)
    try:
        return processes.said(process, seconds=120)
    except subprocess.TimeoutExpired:
        pytest.fail("trials wait for each other")


@pytest.mark.integration
def test_two_threads_are_enough_for_either_world(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = played_with(2, 1, monkeypatch)
    assert np.shape(alone) == (2, TRIALS)
    assert played_with(4, 2, monkeypatch) == alone


@pytest.mark.integration
def test_devices_without_threads_of_their_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = played_with(2, 2, monkeypatch)
    assert isinstance(refused, str)
    assert refused.startswith("mesh: expected fewer CPU devices than threads (2)")
    assert "NPROC=4" in refused


def test_worlds_in_turn_are_what_they_are_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    each = tuple(lambda key, world=world: jnp.sum(release(key, world)) for world in (0, 1))
    keys = jax.random.split(jax.random.key(5))
    in_turn = worlds.both(each, keys)
    monkeypatch.setattr(worlds, "WAITING", set())
    np.testing.assert_allclose(in_turn, worlds.both(each, keys), rtol=1e-6)


def square(a: jax.Array) -> jax.Array:
    return a @ a.T + 4 * jnp.eye(4)


CALLS: dict[str, Any] = {
    "cholesky": lambda a: jnp.linalg.cholesky(square(a)),
    "qr": jnp.linalg.qr,
    "pivoted QR": lambda a: jax.lax.linalg.qr(a, pivoting=True),
    "orthogonal": lambda a: jax.random.orthogonal(jax.random.key(0), 4) + a,
    "householder": lambda a: jax.lax.linalg.householder_product(a, a[0]),
    "svd": jnp.linalg.svd,
    "eigh": lambda a: jnp.linalg.eigh(square(a)),
    "eig": jnp.linalg.eig,
    "solve": lambda a: jnp.linalg.solve(a, a),
    "inverse": jnp.linalg.inv,
    "determinant": jnp.linalg.det,
    "least squares": lambda a: jnp.linalg.lstsq(a, a),
    "pseudo-inverse": jnp.linalg.pinv,
    "spectral norm": lambda a: jnp.linalg.norm(a, 2),
    "Schur": jax.scipy.linalg.schur,
    "triangular": lambda a: jax.scipy.linalg.solve_triangular(a, a),
    "exponential": jax.scipy.linalg.expm,
    "LU": jax.scipy.linalg.lu,
    "Hessenberg": jax.scipy.linalg.hessenberg,
    "polar": jax.scipy.linalg.polar,
    "tridiagonal": lambda a: jax.lax.linalg.tridiagonal(square(a)),
    "tridiagonal solve": lambda a: jax.lax.linalg.tridiagonal_solve(a[0], 9 + a[1], a[2], a),
    "normal vectors": lambda a: jax.random.multivariate_normal(jax.random.key(0), a[0], square(a)),
    "product": lambda a: a @ a,
    "norm": jnp.linalg.norm,
    "Fourier": jnp.fft.fft,
    "sorted": jnp.sort,
    "inside a loop": lambda a: jax.lax.fori_loop(0, 3, lambda _, b: jnp.linalg.qr(b)[0], a),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_wait_are_the_compiled_program_s(name: str) -> None:
    matrix = jnp.eye(4)
    compiled = jax.jit(jax.vmap(CALLS[name])).lower(matrix[None]).as_text()
    called = "lapack_" if worlds.BEFORE_0_11 else "stablehlo.fft"
    assert worlds.waits(jax.make_jaxpr(CALLS[name])(matrix).jaxpr) == (called in compiled)
