"""Ways in which a developer's function could tell the host what it runs on, and a protocol that uses one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from dpaudit.personalization.boundary.protocol import Select, each
from tests.personalization.rounds import DEVICES, PROTOCOL

SEEN: list[np.ndarray] = []  # what reached the host
HELD = jax.new_ref(jnp.zeros(()))  # an array that the developer holds


def _keep(x: Any) -> Any:
    SEEN.append(np.asarray(x))
    return np.zeros(np.shape(x), np.float32)


def callback(x):
    jax.debug.callback(_keep, x)
    return x


def ordered_callback(x):
    jax.debug.callback(_keep, x, ordered=True)
    return x


def printed(x):
    jax.debug.print("{}", x)
    return x


def input_output(x):
    return x + io_callback(_keep, jax.ShapeDtypeStruct(x.shape, jnp.float32), x)


def pure(x):
    return x + jax.pure_callback(_keep, jax.ShapeDtypeStruct(x.shape, jnp.float32), x, vmap_method="sequential")


def in_a_call(x):
    return jax.jit(pure)(x)


def in_a_loop(x):
    return jax.lax.scan(lambda x, _: (pure(x), None), x, None, length=2)[0]


def in_a_branch(x):
    return jax.lax.cond(x > 0, pure, lambda x: x, x)


@jax.custom_vjp
def quiet(x):
    return x


quiet.defvjp(lambda x: (x, x), lambda x, g: (g + 0 * x,))


@jax.custom_vjp
def _told_backward(x):
    return x


_told_backward.defvjp(lambda x: (x, x), lambda x, g: (g + pure(x),))


def in_a_derivative(x):
    return x + jax.grad(_told_backward)(x)


def in_another_s_array(x):
    HELD[...] = jnp.float32(x)
    return x


WAYS = [callback, ordered_callback, printed, input_output, pure, in_a_call, in_a_loop, in_a_branch, in_a_derivative]
WHERE = [
    *(("compute", tell) for tell in WAYS),
    *((part, pure) for part in ("ask", "take", "add", "release")),
    ("release", in_another_s_array),
]  # which JAX itself refuses under vmap


def protocol(part, tell):
    """A protocol that is sound but for ``part``, which tells a number of what it runs on."""

    def told(tree):
        first, *others = jax.tree.leaves(tree)
        moved = first + (0 * tell(jnp.ravel(first)[0].astype(jnp.float32))).astype(first.dtype)
        return jax.tree.unflatten(jax.tree.structure(tree), [moved, *others])

    def before(function, place):
        """The function, which first tells of its argument number ``place``."""
        return lambda *given: function(*given[:place], told(given[place]), *given[place + 1 :])

    (ask, take), compute, add = DEVICES.select, DEVICES.compute, DEVICES.add
    if part == "release":
        return PROTOCOL._replace(release=before(PROTOCOL.release, 1))
    ask, take = (before(ask, 0), take) if part == "ask" else (ask, before(take, 1) if part == "take" else take)
    compute = before(compute, 2) if part == "compute" else compute
    add = before(add, 1) if part == "add" else add
    return PROTOCOL._replace(devices=each(Select(ask, take), compute, add, chunk=5))
