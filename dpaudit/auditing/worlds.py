"""Both worlds of a trial in one program, one after the other where they would have each other wait for ever.

On a CPU, LAPACK calls of jaxlib before 0.11 and Fourier transforms from 0.11 on divide their work over the threads of
the device, from one of these threads, and wait: as many side by side as there are threads never end. With two cores
the same call in either world is enough; devices that share the threads of one CPU need more threads than they are.
"""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun, jaxprs_in_params
from jax.sharding import Mesh

from dpaudit import check, sharding

JAXLIB = version("jaxlib")
LAPACK = {"cholesky", "eig", "eigh", "geqrf", "geqp3", "hessenberg", "householder_product", "lu", "ormqr", "qr"}
LAPACK |= {"schur", "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve"}
BEFORE_0_11 = tuple(map(int, JAXLIB.split(".")[:2])) < (0, 11)
WAITING, CALLS = (LAPACK, "LAPACK") if BEFORE_0_11 else ({"fft"}, "Fourier transforms")


def both(each: tuple[Callable[[jax.Array], jax.Array], ...], keys: jax.Array) -> jax.Array:
    """``each[world](keys[world])`` of all worlds -> [worlds, ...]."""
    if jax.default_backend() == "cpu":
        programs = [jax.make_jaxpr(one)(keys[0]) for one in each]
        each = tuple(lambda key, program=program: jaxpr_as_fun(program)(key)[0] for program in programs)
        if any(waits(program.jaxpr) for program in programs):
            return jax.lax.map(lambda world: jax.lax.switch(world, each, keys[world]), jnp.arange(len(each)))
    return jnp.stack([one(keys[world]) for world, one in enumerate(each)])


def enough_threads(program: Any, mesh: Mesh | None) -> None:
    """Refuses a program that would wait for ever on the devices that one CPU stands for.

    Args:
      program: a trial's Jaxpr.
      mesh: that is to play it.

    Raises:
      InputError: no more threads than devices for one that waits for threads.
    """
    if mesh is None or mesh.devices.flat[0].platform != "cpu":
        return
    devices = len(mesh.local_devices)
    asked = os.environ.get("NPROC", "")
    threads = max(int(asked) if asked.isdecimal() else sharding.cores(), jax.local_device_count())
    if 1 < devices >= threads and waits(program):
        wanted = f"fewer CPU devices than threads ({threads}) for a mechanism that calls {CALLS} of jaxlib {JAXLIB}"
        raise check.expected("mesh", f"{wanted}, or NPROC={2 * devices} from the start", devices)


def waits(jaxpr: Any) -> bool:
    """Whether a program calls what waits for threads."""
    inner = (sub for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params))
    return any(eqn.primitive.name in WAITING for eqn in jaxpr.eqns) or any(map(waits, inner))
