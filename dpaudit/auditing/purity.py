"""Tells whether a mechanism is a pure function of its key and input, as tracing takes it to be.

What Python computes while JAX traces a function is frozen into the program: a counter, a draw of ``numpy.random``, the
time. Such a function is found by tracing it twice, which gives two programs; one that asks whether it is being traced,
by running it once as Python does and once as compiled.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun, jaxprs_in_params
from jax.tree_util import Partial

from dpaudit import check, identity
from dpaudit.auditing import constants

Trace = Callable[[], ClosedJaxpr]

MOST = 16  # tracings of a function that draws from a generator of its own: a coin falls alike in two of them
SMALL = 8  # different operations: outside of jax.jit each is compiled by itself, in some 20 ms
LOOPS = {"scan", "while"}
HOST = {"pure_callback", "io_callback"}
ROUNDING = 64  # in units of the last place of a release's largest number
LONGEST = 100  # characters of a mechanism's own message
QUICKLY = {"xla_backend_optimization_level": 0}  # of a CPU, whose compiler knows it


def refuse_changing(trace: Trace, first: ClosedJaxpr, name: str) -> None:
    """Refuses a function that is another program when it is traced again.

    Functions that were jitted are traced anew too, although JAX has kept what they were. Where Python's or NumPy's
    global generator has moved on, the function is traced up to ``MOST`` times.

    Args:
      trace: traces the function.
      first: what it was at first, just now.
      name: of the function, for the message.

    Raises:
      InputError: another program.
    """
    before, state = identity.standing(first), _generators()
    for _ in range(MOST):
        with _anew():
            try:
                again = identity.standing(trace())
                unchanged = identity.same(before, again)
            except jax.errors.UnexpectedTracerError:
                raise kept_by_tracing(name) from None
            except Exception as error:
                raise _impure(name, f"fails when it is traced again ({_brief(error)})") from None
        if not unchanged:
            cause = "is another program each time it is traced, since what Python counts or draws without the key "
            raise _impure(name, cause + "(a counter, numpy.random, random, the time) is frozen by tracing")
        before, state, past = again, _generators(), state
        if state == past:
            return


def refuse_other_when_traced(apply: Callable[[Any, Any], Any], x: Any, program: ClosedJaxpr, name: str) -> None:
    """Refuses a function that releases something else when it is called as Python does than when it is compiled.

    Both are run once, with one key. Operations that were fused may round otherwise, which is no fault: where the two
    differ at all, what counts is the traced program carried out one operation after another, as Python does.

    A program with a loop (which may be a whole training), one that calls Python, and one of more than ``SMALL``
    different operations are not run: each operation costs a compilation. What tracing twice shows, it shows of them.

    Args:
      apply: the mechanism's function.
      x: its input.
      program: what it was traced to, for a key.
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
    except Exception as error:
        raise _impure(name, f"can be traced but not called ({_brief(error)})") from None
    if _alike(by_python, _compiler()(constants.as_data(Partial(apply), program), key), exactly=True):
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


def kept_by_tracing(name: str) -> check.InputError:
    """What to say of a function that kept a value of one tracing for the next."""
    return _impure(name, "keeps what it computed in one call, such as a jax.random key of its own, for the next")


def _brief(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]


def _impure(name: str, fault: str) -> check.InputError:
    return check.InputError(
        f"mechanism: expected a pure function of (key, x), got {name}, which {fault}; draw all that is random from "
        f"key with jax.random, or audit a function of NumPy as dpaudit.on_host({name})"
    )


def _anew() -> AbstractContextManager[Any]:
    """A setting that changes nothing, under which JAX has kept no tracing: the same device, stated or not."""
    stated = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    return jax.default_device(jax.local_devices()[0] if stated is None else None)


def _generators() -> tuple[Any, ...]:
    """Where the global generators of Python and of NumPy stand; nothing is drawn."""
    name, words, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), name, np.asarray(words).tobytes(), *rest


@cache
def _compiler() -> Callable[[Partial, jax.Array], list[jax.Array]]:
    """Made when it is first needed: to ask for the backend while importing would start it before processes join."""
    options = QUICKLY if jax.default_backend() == "cpu" else {}
    return jax.jit(lambda held, key: held.func.run(*held.args[0], *held.args[1], key), compiler_options=options)


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
    """Whether two releases are one, or but for rounding: of numbers in a hundred, at most one differs."""
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
