"""Refuses, before any trial and in one line, a mechanism that fails or is not a pure function.

Anything that Python computes while JAX traces a function is frozen into the program: a counter, a draw of
``numpy.random``, the time. Such a function is found by tracing it twice, which gives two programs; one that checks
whether it is being traced is found by running it once in Python and once compiled.
"""

import numbers
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun, jaxprs_in_params
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit._engine import fingerprint, programs
from dpaudit.mechanisms.claim import Mechanism

Trace = Callable[[], ClosedJaxpr]

MOST = 16  # tracings of a function that draws from a generator of its own: a coin falls alike in two of them
SMALL = 8  # different operations: outside of jax.jit each is compiled by itself, in some 20 ms
LOOPS = {"scan", "while"}
HOST = {"pure_callback", "io_callback"}
ROUNDING = 64  # in units of the last place of a release's largest number
LONGEST_REASON = 100  # characters of a mechanism's own message


def refuse_changing(trace: Trace, first: ClosedJaxpr, name: str) -> None:
    """Refuses a function that gives a different program when it is traced again.

    Jitted functions are traced again, too, although JAX has cached them. If Python's or NumPy's global generator has
    advanced, the function is traced up to ``MOST`` times.

    Args:
      trace: traces the function.
      first: what it was at first, just now.
      name: of the function, for the message.

    Raises:
      InputError: another program.
    """
    before, state = fingerprint.standing(first), _generators()
    for _ in range(MOST):
        with _anew():
            try:
                again = fingerprint.standing(trace())
                unchanged = fingerprint.same(before, again)
            except jax.errors.UnexpectedTracerError:
                raise kept_by_tracing(name) from None
            except (Exception, SystemExit) as error:
                raise _impure(name, f"fails when it is traced again ({_brief(error)})") from None
        if not unchanged:
            cause = "is another program each time it is traced, since what Python counts or draws without the key "
            raise _impure(name, cause + "(a counter, numpy.random, random, the time) is frozen by tracing")
        before, state, past = again, _generators(), state
        if state == past:
            return


def refuse_other_when_traced(apply: Callable[[Any, Any], Any], x: Any, program: ClosedJaxpr, name: str) -> None:
    """Refuses a function whose release in plain Python differs from that of the compiled program.

    Both are run once, with one key. Fused operations may round differently, which is not a fault: if the two differ,
    the release is compared with that of the traced program evaluated operation by operation, as Python does.

    A program with a loop (which may be a whole training), one that calls Python, and one of more than ``SMALL``
    different operations are not run: each operation costs a compilation. Such programs are only traced twice.

    Args:
      apply: the mechanism's function.
      x: its input.
      program: its trace, for a key.
      name: of the function, for the message.

    Raises:
      InputError: another release.
    """
    if not _is_small(program):
        return
    key = jax.random.key(0)
    plain = getattr(apply, "__wrapped__", apply) if isinstance(apply, jax.stages.Wrapped) else apply
    try:
        by_python = [np.asarray(leaf) for leaf in jax.tree.leaves(plain(key, x))]
    except jax.errors.JaxRuntimeError:
        return  # memory, or a device that has no such operation by itself
    except (Exception, SystemExit) as error:
        raise _impure(name, f"can be traced but not called ({_brief(error)})") from None
    if _alike(by_python, _compiled(programs.as_data(Partial(apply), program), key), exactly=True):
        return
    unfused = jaxpr_as_fun(jax.make_jaxpr(lambda key: plain(key, x))(key))
    if not _alike(by_python, unfused(key)):
        raise _impure(name, "with one key releases something else when it is called than when it is compiled")


def refuse_calls_without_key(program: ClosedJaxpr, name: str) -> None:
    """Refuses a program whose release does not depend on the key but on a function on the host, which may draw.

    Raises:
      InputError: such a call.
    """
    if HOST & set(_operations(program.jaxpr)):
        raise _impure(name, "calls Python without the key, so that nothing tells what is drawn there")


def kept_by_tracing(name: str) -> _validate.InputError:
    """Returns the error for a function that kept a value of one tracing for the next."""
    return _impure(name, "keeps what it computed in one call, such as a jax.random key of its own, for the next")


def _brief(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]


def _impure(name: str, fault: str) -> _validate.InputError:
    return _validate.InputError(
        f"mechanism: expected a pure function of (key, x), got {name}, which {fault}; draw all that is random from "
        f"key with jax.random, or audit a function of NumPy as dpaudit.on_host({name})"
    )


def _anew() -> AbstractContextManager[Any]:
    """Returns a setting that changes nothing but empties JAX's cache of traces: the same device, stated or not."""
    stated = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return jax.default_device(jax.local_devices()[0] if stated is None else None)


def _generators() -> tuple[Any, ...]:
    """Returns the states of Python's and NumPy's global generators, without drawing from them."""
    name, words, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), name, np.asarray(words).tobytes(), *rest


@programs.quickly
def _compiled(held: Partial, key: jax.Array) -> list[jax.Array]:
    return held.func.run(*held.args[0], *held.args[1], key)


def _is_small(program: ClosedJaxpr) -> bool:
    operations = {
        (eqn.primitive.name, str(eqn.params), *(str(var.aval) for var in eqn.invars)) for eqn in program.jaxpr.eqns
    }
    return len(operations) <= SMALL and not (LOOPS | HOST) & set(_operations(program.jaxpr))


def _operations(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jaxprs_in_params(eqn.params):
            yield from _operations(inner)


def _alike(one: list[Any], other: list[Any], *, exactly: bool = False) -> bool:
    """Tells whether two releases are equal up to rounding: at most one number in a hundred may differ."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, map(np.asarray, other), strict=True):
        if a.shape != b.shape:
            return False
        if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            continue
        if exactly:
            return False
        unit = float(jnp.finfo(a.dtype).eps) if jnp.issubdtype(a.dtype, jnp.floating) else 0.0
        a, b = a.astype(np.float64), b.astype(np.float64)
        bound = ROUNDING * unit * np.max(np.abs(a), where=np.isfinite(a), initial=0)
        apart = ~np.isclose(a, b, rtol=0, atol=bound, equal_nan=True)
        if apart.mean() > 0.01:
            return False
    return True


NOT_JITTABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)


def examine(mechanism: Mechanism, x0: Any, x1: Any) -> None:
    """Refuses a mechanism that cannot be audited: one that raises, cannot be traced, is not pure, ignores its key, or
    whose releases are empty, not numbers, or of two shapes.

    It is traced twice for each input; a small one is run once as well (:mod:`dpaudit.auditing.lint.probe`).

    Args:
      mechanism: what is to be audited.
      x0, x1: the two inputs.

    Raises:
      InputError: one of these. A mechanism that ignores its key and answers x0 and x1 differently needs no audit: its
        epsilon is infinite. (One that answers both alike leaks nothing on this pair, and is played.)
    """
    name = name_of(mechanism.apply)
    (program, one), (_, other) = traced = [once(mechanism, name, world, x) for world, x in enumerate((x0, x1))]
    for x, (first, _) in zip((x0, x1), traced, strict=True):
        refuse_changing(partial(_program, mechanism, x), first, name)
    for array in (*program.out_avals, *traced[1][0].out_avals):
        _refuse_no_numbers(name, array)
    if one != other:
        raise _validate.expected("mechanism", f"releases of one shape, {one} as for x0", f"{other} for x1")
    if not sum(array.size for array in program.out_avals):
        raise _validate.expected("mechanism", "a release of at least one number", f"none from {name}")
    refuse_other_when_traced(mechanism.apply, x0, program, name)
    if _depends_on_key(program):
        return
    refuse_calls_without_key(program, name)
    key = jax.random.key(0)
    releases = (map(np.asarray, jax.tree.leaves(mechanism.apply(key, x))) for x in (x0, x1))
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*releases, strict=True)):
        raise _validate.InputError(
            f"mechanism: expected releases that depend on the key, got a deterministic {name} whose releases of x0 "
            "and x1 differ: its epsilon is infinite"
        )


@contextmanager
def failures_named(mechanism: Mechanism) -> Iterator[None]:
    """Raises an error of a function on the host, or of JAX's batching, as one line instead of JAX's traceback.

    Raises:
      InputError: the function's own message, or JAX's.
    """
    try:
        yield
    except NotImplementedError as error:
        if "vmap" not in str(error):
            raise
        cause, name = _validate.one_line(f"NotImplementedError: {error}"), name_of(mechanism.apply)
        raise _validate.InputError(
            f"mechanism: expected a release that jax.vmap can batch, got {cause} (by {name})"
        ) from None
    except jax.errors.JaxRuntimeError as error:
        if "callback" not in str(error).lower():
            raise
        cause = _validate.one_line(str(error).strip().splitlines()[-1])
        name = name_of(mechanism.apply)
        raise _validate.InputError(
            f"mechanism: expected a release in every trial, got {cause} (raised by {name})"
        ) from None


def name_of(function: Callable[..., Any]) -> str:
    """Returns a function's own name, for messages."""
    return getattr(function, "__name__", type(function).__name__)


def _program(mechanism: Mechanism, x: Any, *, with_shapes: bool = False) -> Any:
    """Traces one release as a program of its key.

    Raises:
      InputError: a release that holds something other than numbers, such as text.
    """

    def release(key: jax.Array) -> Any:
        released = mechanism.apply(key, x)
        for leaf in jax.tree.leaves(released):
            if not (isinstance(leaf, numbers.Number) or hasattr(leaf, "dtype") or hasattr(leaf, "__jax_array__")):
                name = name_of(mechanism.apply)
                remedy = f"a function that releases text or other objects runs as dpaudit.on_host({name})"
                raise _validate.InputError(
                    f"mechanism: expected a release of numbers, got a {type(leaf).__name__} from {name}; {remedy}"
                )
        return released

    return jax.make_jaxpr(release, return_shape=with_shapes)(jax.random.key(0))


def once(mechanism: Mechanism, name: str, world: int, x: Any, *, jax_alone: bool = False) -> tuple[ClosedJaxpr, Any]:
    """Traces one release as a program of its key; returns it, and its structure with each array's shape and type.

    Args:
      mechanism: what is traced.
      name: of its function, for messages.
      world: 0 or 1, the number of the input.
      x: the input.
      jax_alone: whether it can only run in JAX, so that no message names :func:`dpaudit.on_host`.

    Raises:
      InputError: what the function raises, in one line.
    """
    instead = "; write it with jax.numpy" if jax_alone else f"; one of NumPy runs, slower, as dpaudit.on_host({name})"
    try:
        program, release = _program(mechanism, x, with_shapes=True)
    except _validate.InputError as error:  # without JAX's note on its frames
        raise _validate.InputError(*error.args) from None
    except NOT_JITTABLE as error:
        cause = type(error).__name__
        raise _validate.InputError(
            f"mechanism: expected a function that jax.jit can trace, got {name}, which needs a number where tracing "
            f"has none ({cause}){instead}"
        ) from None
    except jax.errors.UnexpectedTracerError:
        raise kept_by_tracing(name) from None
    except (Exception, SystemExit) as error:
        cause = _validate.one_line(f"{type(error).__name__}: {error}")
        if not jax_alone and isinstance(error, AttributeError) and _is_of_generator(error):
            raise _validate.InputError(
                f"mechanism: expected a function of (key, x), got {name}, which takes its key for a NumPy generator "
                f"(.{error.name}); it runs as dpaudit.on_host({name})"
            ) from None
        if _takes_x_first(mechanism, x):
            raise _validate.expected("mechanism", "a function of (key, x)", f"{name}, of (x, key)") from None
        raise _validate.InputError(
            f"mechanism: expected a release of x{world}, got {cause} (raised by {name})"
        ) from None
    return program, jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), release)


def _takes_x_first(mechanism: Mechanism, x: Any) -> bool:
    """Tells whether a function that fails runs with its arguments in the other order."""
    try:
        jax.eval_shape(lambda key: mechanism.apply(x, key), jax.random.key(0))
    except (Exception, SystemExit):
        return False
    return True


def _is_of_generator(error: AttributeError) -> bool:
    """Tells whether the missing attribute is a method of NumPy's generators that was asked of a traced array."""
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
    raise _validate.InputError(
        f"mechanism: expected a release of real numbers, got {array.str_short()} from {name}; {remedy}"
    )


def _depends_on_key(program: ClosedJaxpr) -> bool:
    """Tells whether any output can depend on the only input; in doubt, yes."""
    jaxpr = program.jaxpr
    return jaxpr.invars[0] in _needed(jaxpr, jaxpr.outvars)


def _needed(jaxpr: Any, outputs: Any) -> set[Any]:
    """Returns the variables on which ``outputs`` of this program can depend; functions that were jitted are
    entered."""
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
