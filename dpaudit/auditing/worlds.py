"""Both worlds of a trial in one program, one after the other where linear algebra would have them wait for ever.

A LAPACK call of jaxlib before 0.11 divides its batch over the threads of a CPU, from one of these threads, and waits:
as many calls side by side as there are threads never end. With two cores the same call in either world is enough;
devices that share the threads of one CPU need more threads than they are.
"""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params
from jax.sharding import Mesh

from dpaudit import check

JAXLIB = version("jaxlib")
WAITING = tuple(map(int, JAXLIB.split(".")[:2])) < (0, 11)
LAPACK = {"cholesky", "eig", "eigh", "geqrf", "geqp3", "hessenberg", "householder_product", "lu", "schur", "svd"}
LAPACK |= {"symmetric_product", "triangular_solve", "tridiagonal", "tridiagonal_solve"}


def both(each: tuple[Callable[[jax.Array], jax.Array], ...], keys: jax.Array) -> jax.Array:
    """``each[world](keys[world])`` of all worlds -> [worlds, ...]."""
    if WAITING and jax.default_backend() == "cpu":
        programs = [jax.make_jaxpr(one)(keys[0]) for one in each]
        each = tuple(lambda key, program=program: jaxpr_as_fun(program)(key)[0] for program in programs)
        if any(_calls_lapack(program.jaxpr) for program in programs):
            return jax.lax.map(lambda world: jax.lax.switch(world, each, keys[world]), jnp.arange(len(each)))
    return jnp.stack([one(keys[world]) for world, one in enumerate(each)])


def enough_threads(program: Any, mesh: Mesh | None) -> None:
    """Refuses a program that would wait for ever on the devices that one CPU stands for.

    Args:
      program: a trial's Jaxpr.
      mesh: that is to play it.

    Raises:
      InputError: no more threads than devices for one that calls LAPACK.
    """
    if not WAITING or mesh is None or mesh.devices.flat[0].platform != "cpu":
        return
    devices = len(mesh.local_devices)
    asked = os.environ.get("NPROC", "")
    threads = max(int(asked) if asked.isdecimal() else os.cpu_count() or 1, jax.local_device_count())
    if 1 < devices >= threads and _calls_lapack(program):
        wanted = f"fewer CPU devices than threads ({threads}) for a mechanism that calls LAPACK of jaxlib {JAXLIB}"
        raise check.expected("mesh", f"{wanted}, or NPROC={2 * devices} from the start", devices)


def _calls_lapack(jaxpr: Any) -> bool:
    inner = (sub for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params))
    return any(eqn.primitive.name in LAPACK for eqn in jaxpr.eqns) or any(map(_calls_lapack, inner))
