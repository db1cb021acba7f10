"""Evaluates both worlds of a trial in one program, sequentially where concurrent calls would deadlock.

On a CPU, LAPACK calls of jaxlib before 0.11 and Fourier transforms from 0.11 on occupy one of the device's threads,
divide their work over all of them, and wait, so as many concurrent calls as there are threads deadlock. With two cores
one such call in each world is enough, so both worlds of such a trial run one after the other.
"""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params
from jax.sharding import Mesh

from dpaudit import _platform, _validate
from dpaudit._engine import sharding

JAXLIB = version("jaxlib")
LAPACK = {"cholesky", "eig", "eigh", "geqrf", "geqp3", "hessenberg", "householder_product", "lu", "ormqr", "qr"}
LAPACK |= {"schur", "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve"}
BEFORE_0_11 = tuple(map(int, JAXLIB.split(".")[:2])) < (0, 11)
WAITING, CALLS = (LAPACK, "LAPACK") if BEFORE_0_11 else ({"fft"}, "Fourier transforms")


def both(each: tuple[Callable[[jax.Array], jax.Array], ...], keys: jax.Array) -> jax.Array:
    """Evaluates ``each[world](keys[world])`` of all worlds, sequentially where they could deadlock: [worlds, ...]."""
    if _platform.on_cpu():
        programs = [jax.make_jaxpr(one)(keys[0]) for one in each]
        each = tuple(lambda key, program=program: jaxpr_as_fun(program)(key)[0] for program in programs)
        if any(waits(program.jaxpr) for program in programs):
            return jax.lax.map(lambda world: jax.lax.switch(world, each, keys[world]), jnp.arange(len(each)))
    return jnp.stack([one(keys[world]) for world, one in enumerate(each)])


def enough_threads(program: Any, mesh: Mesh | None) -> None:
    """Refuses a program that would deadlock on the virtual devices of one CPU.

    Args:
      program: a trial's Jaxpr.
      mesh: the devices to play it on.

    Raises:
      InputError: a program that waits for threads, on a CPU with no more threads than devices.
    """
    if mesh is None or mesh.devices.flat[0].platform != "cpu":
        return
    devices = len(mesh.local_devices)
    asked = os.environ.get("NPROC", "")
    threads = max(int(asked) if asked.isdecimal() else sharding.cores(), jax.local_device_count())
    if 1 < devices >= threads and waits(program):
        wanted = f"fewer CPU devices than threads ({threads}) for a mechanism that calls {CALLS} of jaxlib {JAXLIB}"
        raise _validate.expected("mesh", f"{wanted}, or NPROC={2 * devices} from the start", devices)


def waits(jaxpr: Any) -> bool:
    """Tells whether a program makes calls that wait for threads."""
    inner = (sub for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params))
    return any(eqn.primitive.name in WAITING for eqn in jaxpr.eqns) or any(map(waits, inner))
