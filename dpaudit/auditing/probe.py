"""A look at the mechanism before any trial: what cannot be audited is refused in one line that names the cause."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params

from dpaudit import check
from dpaudit.auditing import purity
from dpaudit.mechanisms.claim import Mechanism

NOT_JITTABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)
LONGEST = 200  # characters of a mechanism's own message


def examine(mechanism: Mechanism, x0: Any, x1: Any) -> None:
    """Refuses a mechanism that raises, is not jittable or not pure, releases nothing, no numbers or other shapes, or
    ignores its key.

    It is traced twice for each input; a small one is run once as well (:mod:`dpaudit.auditing.purity`).

    Args:
      mechanism: what is to be audited.
      x0, x1: the two inputs.

    Raises:
      InputError: one of these. A mechanism that ignores its key and answers x0 and x1 differently needs no audit: its
        epsilon is infinite. (One that answers both alike leaks nothing on this pair, and is played.)
    """
    name = name_of(mechanism.apply)
    (program, one), (_, other) = traced = [_traced(mechanism, name, world, x) for world, x in enumerate((x0, x1))]
    for x, (first, _) in zip((x0, x1), traced, strict=True):
        purity.refuse_changing(partial(_program, mechanism, x), first, name)
    for array in (*program.out_avals, *traced[1][0].out_avals):
        _refuse_no_numbers(name, array)
    if one != other:
        raise check.expected("mechanism", f"releases of one shape, {one} as for x0", f"{other} for x1")
    if not jax.tree.leaves(one):
        raise check.expected("mechanism", "a release of at least one array", f"none from {name}")
    purity.refuse_other_when_traced(mechanism.apply, x0, program, name)
    if _depends_on_key(program):
        return
    purity.refuse_calls_without_key(program, name)
    key = jax.random.key(0)
    releases = (map(np.asarray, jax.tree.leaves(mechanism.apply(key, x))) for x in (x0, x1))
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*releases, strict=True)):
        raise check.InputError(
            f"mechanism: expected releases that depend on the key, got a deterministic {name} whose releases of x0 "
            "and x1 differ: its epsilon is infinite"
        )


@contextmanager
def failures_named(mechanism: Mechanism) -> Iterator[None]:
    """What a function on the host raises in some trial reaches the caller in one line, not as JAX's traceback; so does
    what JAX says of one that it cannot batch.

    Raises:
      InputError: the function's own message, or JAX's.
    """
    try:
        yield
    except NotImplementedError as error:
        if "vmap" not in str(error):
            raise
        cause, name = one_line(f"NotImplementedError: {error}"), name_of(mechanism.apply)
        raise check.InputError(
            f"mechanism: expected a release that jax.vmap can batch, got {cause} (by {name})"
        ) from None
    except jax.errors.JaxRuntimeError as error:
        if "callback" not in str(error).lower():
            raise
        cause = one_line(str(error).strip().splitlines()[-1])
        name = name_of(mechanism.apply)
        raise check.InputError(
            f"mechanism: expected a release in every trial, got {cause} (raised by {name})"
        ) from None


def one_line(text: str) -> str:
    """Text of somebody else's, fit for a message."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def name_of(function: Callable[..., Any]) -> str:
    """A function's own name, for messages."""
    return getattr(function, "__name__", type(function).__name__)


def _program(mechanism: Mechanism, x: Any, *, with_shapes: bool = False) -> Any:
    """One release as a program of its key."""
    return jax.make_jaxpr(lambda key: mechanism.apply(key, x), return_shape=with_shapes)(jax.random.key(0))


def _traced(mechanism: Mechanism, name: str, world: int, x: Any) -> tuple[ClosedJaxpr, Any]:
    """One release as a program of its key, and its structure with each array's shape and type."""
    try:
        program, release = _program(mechanism, x, with_shapes=True)
    except check.InputError as error:  # without JAX's note on its frames
        raise check.InputError(*error.args) from None
    except NOT_JITTABLE as error:
        cause = type(error).__name__
        raise check.InputError(
            f"mechanism: expected a function that jax.jit can trace, got {name}, which needs a number where tracing "
            f"has none ({cause}); one of NumPy runs, slower, as dpaudit.on_host({name})"
        ) from None
    except jax.errors.UnexpectedTracerError:
        raise purity.kept_by_tracing(name) from None
    except Exception as error:
        cause = one_line(f"{type(error).__name__}: {error}")
        if isinstance(error, AttributeError) and _is_of_generator(error):
            raise check.InputError(
                f"mechanism: expected a function of (key, x), got {name}, which takes its key for a NumPy generator "
                f"(.{error.name}); it runs as dpaudit.on_host({name})"
            ) from None
        raise check.InputError(f"mechanism: expected a release of x{world}, got {cause} (raised by {name})") from None
    return program, jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), release)


def _is_of_generator(error: AttributeError) -> bool:
    """Whether it was a method of NumPy's generators that a traced array was found to lack."""
    return isinstance(error.obj, Tracer) and any(
        hasattr(kind, str(error.name)) for kind in (np.random.Generator, np.random.RandomState)
    )


def _refuse_no_numbers(name: str, array: Any) -> None:
    """Refuses an array of a release that scores cannot read.

    Raises:
      InputError: complex numbers; random keys.
    """
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        remedy = "release its real and its imaginary part"
    elif jnp.issubdtype(array.dtype, jax.dtypes.extended):
        remedy = "release jax.random.key_data(key) if a key is what is released"
    else:
        return
    raise check.InputError(
        f"mechanism: expected a release of real numbers, got {array.str_short()} from {name}; {remedy}"
    )


def _depends_on_key(program: ClosedJaxpr) -> bool:
    """Whether any output can depend on the only input; in doubt, yes."""
    jaxpr = program.jaxpr
    return jaxpr.invars[0] in _needed(jaxpr, jaxpr.outvars)


def _needed(jaxpr: Any, outputs: Any) -> set[Any]:
    """The variables on which ``outputs`` of this program can depend; a function that was jitted is looked into."""
    needed = {var for var in outputs if not isinstance(var, Literal)}
    for equation in reversed(jaxpr.eqns):
        wanted = [var in needed for var in equation.outvars]
        if not any(wanted):
            continue
        inputs = equation.invars
        inner = list(jaxprs_in_params(equation.params))
        if equation.primitive.name in ("jit", "pjit") and len(inner) == 1:
            within = _needed(inner[0], [var for var, want in zip(inner[0].outvars, wanted, strict=True) if want])
            inputs = [outer for outer, var in zip(inputs, inner[0].invars, strict=True) if var in within]
        needed |= {var for var in inputs if not isinstance(var, Literal)}
    return needed
