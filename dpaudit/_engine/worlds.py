"""Evaluates parts of one program, such as both worlds of a trial, sequentially where concurrent calls would deadlock.

On a CPU, LAPACK calls of jaxlib before 0.11 and Fourier transforms from 0.11 on occupy one of the device's threads,
divide their work over all of them, and wait, so as many concurrent calls as there are threads deadlock. With two cores
one such call in each of two parts is enough, so such parts run one after the other. Programs that are dispatched
without waiting for the one before are concurrent as well.
"""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
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


def after(first: Any, then: Callable[[Any], Any]) -> Any:
    """Computes ``then(first)``, of the structure of ``first``, sequentially where the two could deadlock."""
    if not (_platform.on_cpu() and waits(jax.make_jaxpr(then)(first).jaxpr)):
        return then(first)
    always = jax.lax.optimization_barrier(jnp.bool_(True))  # the compiler cannot know this, so it keeps the branch
    return jax.lax.cond(always, then, lambda first: first, first)


def waited_for(result: Any) -> Any:
    """Returns a result, on a CPU once it is computed, so that the next program does not run beside this one."""
    known = not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(result))
    return jax.block_until_ready(result) if known and _platform.on_cpu() else result


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
