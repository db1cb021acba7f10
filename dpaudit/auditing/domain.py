"""Describes which pairs of inputs are neighbours, and loads the mechanism and the pair that a user's file defines.

A :class:`Domain` is written for one pair; a search maps it over many. The basic domains hold arrays of one record, any
two of which are neighbours (a local mechanism); :func:`records` and :func:`within` narrow the relation. A
:class:`Case` is a mechanism with the pair and the promise that it is audited on; :func:`load` finds it in a Python
file.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit.mechanisms.claim import NEIGHBOURING, Claim, Mechanism
from dpaudit.mechanisms.clipping import clip, norm_and_direction, wide
from dpaudit.mechanisms.sampling import exponential, normal

MODULE = "dpaudit_case"  # the name under which a user's file runs, which no file that it imports should have

Pair = tuple[Any, Any]


class Domain(NamedTuple):
    """The pairs that a search may choose from, as two pure, jittable functions.

    Attributes:
      draw: ``draw(key) -> (x0, x1)``, a random pair of neighbours; a pair is found only if it is near one that can be
        drawn.
      project: ``project((x0, x1)) -> (x0, x1)``, the neighbours nearest to any two inputs of these shapes.
    """

    draw: Callable[[jax.Array], Pair]
    project: Callable[[Pair], Pair]


def ball(shape: int | tuple[int, ...], radius: float, ord: int = 2) -> Domain:
    """Returns the domain of any two points of {x: |x| <= radius}, drawn with a uniform length so that short ones occur
    too.

    Args:
      shape: of x, whose norm is that of all its entries.
      radius: > 0.
      ord: 2 or 1, the norm.

    Raises:
      InputError: a value out of range.
    """
    shape = _shape(shape)
    _validate.positive(radius=radius)
    _norm(ord)

    def draw(key: jax.Array) -> jax.Array:
        length_key, size_key, sign_key = jax.random.split(key, 3)
        if ord == 2:
            point = normal(size_key, shape)
        else:
            point = exponential(size_key, shape) * jax.random.rademacher(sign_key, shape)
        return radius * jax.random.uniform(length_key) * norm_and_direction(point, ord)[1]

    return _any_two(draw, lambda x: clip(x, radius, ord))


def box(shape: int | tuple[int, ...], low: Any, high: Any, dtype: Any = jnp.float32) -> Domain:
    """Returns the domain of any two points of {x: low <= x <= high}, drawn uniformly.

    Args:
      shape: of x.
      low, high: numbers or arrays that broadcast to ``shape``, low < high.
      dtype: of x; for an integer type, the integers low .. high.

    Raises:
      InputError: low not below high, or not finite.
    """
    shape = _shape(shape)
    low, high = (jnp.asarray(_validate.finite(**{name: end}), dtype) for name, end in (("low", low), ("high", high)))
    if not (low < high).all():
        raise _validate.expected("high", "a number above low", high.tolist())

    def draw(key: jax.Array) -> jax.Array:
        if jnp.issubdtype(dtype, jnp.integer):
            return _integers(key, shape, low, high)
        return jax.random.uniform(key, shape, dtype, low, high)

    return _any_two(draw, lambda x: jnp.clip(x, low, high))


def choices(values: Any) -> Domain:
    """Returns the domain of any two of finitely many values, such as bits, categories or a table of real records.

    Args:
      values: [k, ...] with k >= 2, one value a row.

    Raises:
      InputError: fewer than two values.
    """
    values = jnp.asarray(_validate.finite(values=values))
    if values.ndim < 1 or len(values) < 2:
        raise _validate.expected("values", "an array of at least two values", f"shape {list(values.shape)}")
    rows = values.reshape(len(values), -1)

    def nearest(x: jax.Array) -> jax.Array:
        return values[jnp.argmin(_apart(rows, x.reshape(-1)).sum(axis=1))]

    return _any_two(lambda key: jax.random.choice(key, values), nearest)


def records(one: Domain, count: int, neighbouring: str = "replace") -> Domain:
    """Returns the domain of data sets of ``count`` records that differ in one.

    Args:
      one: the domain of one record.
      count: n >= 1; a data set has a leading axis of n.
      neighbouring: ``"replace"``: one record of x1 takes any other value; ``"add_remove"``: one record of x1 is
        removed, that is, set to zeros.

    Raises:
      InputError: a value out of range.
    """
    checked(one=one)
    _validate.at_least(1, count=count)
    _validate.one_of(NEIGHBOURING, neighbouring=neighbouring)

    def differing(pair: Pair, chosen: jax.Array) -> Pair:
        def altered(a: jax.Array, b: jax.Array) -> jax.Array:
            return a.at[chosen].set(b[chosen] if neighbouring == "replace" else 0)

        return pair[0], jax.tree.map(altered, *pair)

    def draw(key: jax.Array) -> Pair:
        chosen_key, *keys = jax.random.split(key, count + 1)
        return differing(jax.vmap(one.draw)(jnp.stack(keys)), jax.random.randint(chosen_key, (), 0, count))

    def project(pair: Pair) -> Pair:
        x0, x1 = jax.vmap(lambda x0, x1: one.project((x0, x1)))(*pair)
        leaves = zip(jax.tree.leaves(x0), jax.tree.leaves(x1), strict=True)
        changes = [_apart(a, b).reshape(count, -1).sum(axis=1) for a, b in leaves]
        return differing((x0, x1), jnp.argmax(jnp.sum(jnp.stack(changes), axis=0)))

    return Domain(draw, project)


def within(domain: Domain, distance: float, ord: int = 2) -> Domain:
    """Returns the pairs of a convex domain that are at most ``distance`` apart; x1 is moved toward x0 until it is.

    Args:
      domain: of pairs of arrays, convex (a ball or a box).
      distance: > 0, the sensitivity in question.
      ord: 2 or 1, the norm of x1 - x0, all entries together.

    Raises:
      InputError: a value out of range.
    """
    checked(domain=domain)
    _validate.positive(distance=distance)
    _norm(ord)

    def near(pair: Pair) -> Pair:
        x0, x1 = pair
        return x0, x0 + clip(x1 - x0, distance, ord)

    return Domain(lambda key: near(domain.draw(key)), lambda pair: near(domain.project(pair)))


def checked(**named: Any) -> Domain:
    """Returns a domain, after checking that its functions can be traced and agree on the shapes of a pair.

    Raises:
      InputError: not a Domain; draw gives no pair; project gives other shapes or types than draw.
    """
    ((name, domain),) = named.items()
    if not isinstance(domain, Domain):
        raise _validate.expected(name, "a Domain, such as dpaudit.domain.ball(10, 1.0)", domain)
    drawn = _outcome(f"{name}.draw", lambda: jax.eval_shape(domain.draw, jax.random.key(0)))
    if not isinstance(drawn, tuple) or len(drawn) != 2 or _shapes(drawn[0]) != _shapes(drawn[1]):
        raise _validate.expected(f"{name}.draw", "a pair (x0, x1) of the same shapes", _shapes(drawn))
    back = _outcome(f"{name}.project", lambda: jax.eval_shape(domain.project, drawn))
    if _shapes(back) != _shapes(drawn):
        raise _validate.expected(f"{name}.project", f"the shapes of draw, {_shapes(drawn)}", _shapes(back))
    return domain


def _outcome(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:
        cause = _validate.one_line(f"{type(error).__name__}: {error}")
        raise _validate.InputError(f"{name}: expected a jittable function, got {cause}") from None


def _shapes(pair: Any) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", pair)).replace("'", "")


def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_validate.at_least(1, shape=size) for size in (shape if isinstance(shape, tuple) else (shape,)))


def _norm(ord: int) -> None:
    if ord not in (1, 2):
        raise _validate.expected("ord", "1 or 2", ord)


def _integers(key: jax.Array, shape: tuple[int, ...], low: jax.Array, high: jax.Array) -> jax.Array:
    """Draws integers from low to high, both included, also where their type has no number above high."""
    kind = jnp.iinfo(low.dtype)
    last = np.asarray(high) == kind.max  # drawn one lower, as randint leaves out its upper end
    if not last.any():
        return jax.random.randint(key, shape, low, high + 1, low.dtype)
    top = jnp.asarray(last, low.dtype)
    drawn = jax.random.randint(key, shape, low - top, high - top + 1, low.dtype) + top
    bits = jax.random.bits(key, shape, jnp.uint64 if kind.bits == 64 else jnp.uint32)
    return jnp.where(last & (low == kind.min), bits.astype(low.dtype), drawn)


def _apart(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns |a - b| in float32 or wider, of integers exactly where they are close: float32 does not hold large
    ones."""
    kind = jnp.result_type(a, b)
    if not jnp.issubdtype(kind, jnp.integer):
        return jnp.abs(wide(a) - wide(b))
    apart = jnp.maximum(a, b) - jnp.minimum(a, b)
    return wide(apart.astype(f"uint{jnp.iinfo(kind).bits}"))


def _any_two(draw: Callable[[jax.Array], Any], project: Callable[[Any], Any]) -> Domain:
    """Returns the domain of one record any two values of which are neighbours."""

    def draw_two(key: jax.Array) -> Pair:
        both = jax.vmap(draw)(jax.random.split(key))
        return jax.tree.map(lambda leaf: leaf[0], both), jax.tree.map(lambda leaf: leaf[1], both)

    return Domain(draw_two, lambda pair: (project(pair[0]), project(pair[1])))


class Case(NamedTuple):
    """What ``dpaudit audit FILE:NAME`` audits.

    Attributes:
      mechanism: a :class:`Mechanism` or a jittable ``fn(key, x) -> release``.
      x0, x1: the two inputs, neighbours in the sense of the claim.
      claim: the promise; None for the mechanism's own, if it has one.
    """

    mechanism: Mechanism | Callable[[Any, Any], Any]
    x0: Any
    x1: Any
    claim: Claim | None = None


def load(target: str) -> Case:
    """Runs a user's file and finds the case in it.

    Args:
      target: ``FILE:NAME``. NAME is a :class:`Case`, or a mechanism whose pair is the file's ``x0`` and ``x1`` and
        whose promise is its ``claim``, where there is one.

    Raises:
      InputError: no such file or name, a file that raises when it is run, a name for something else.
    """
    found, module, missing = _found(target)
    if isinstance(found, Case):
        return found
    if missing:
        raise _validate.InputError(missing)
    return Case(found, module.x0, module.x1, getattr(module, "claim", None))


def load_with_neighbours(target: str) -> tuple[Case, Domain | Pair]:
    """Runs a user's file and finds the case in it, with the pairs to examine: its ``domain``, else the case's own.

    Args:
      target: as for :func:`load`; x0 and x1 may be missing where the file has a ``domain``, a :class:`Domain`.

    Raises:
      InputError: as for :func:`load`.
    """
    found, module, missing = _found(target)
    domain = getattr(module, "domain", None)  # `from dpaudit import domain` puts a module there
    if isinstance(found, Case):
        return found, (found.x0, found.x1)
    if isinstance(domain, Domain):
        return Case(found, None, None, getattr(module, "claim", None)), domain
    if missing:
        raise _validate.InputError(missing)
    return Case(found, module.x0, module.x1, getattr(module, "claim", None)), (module.x0, module.x1)


def find(target: str, wanted: str) -> tuple[Any, ModuleType, str]:
    """Runs the file of a target ``FILE:NAME``; returns what it names, the file's module, and ``<file's name>: NAME``.

    Args:
      target: as above.
      wanted: what NAME should stand for, for the message.

    Raises:
      InputError: the target has another form, there is no such file or name, or the file raises when it is run.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise _validate.expected("target", "FILE:NAME, as in my_mechanism.py:noisy_sum", target)
    path = Path(file)
    if not path.is_file():
        raise _validate.expected("target", "the path of a Python file before the colon", f"{file}, which is no file")
    module = _run(path)
    found = getattr(module, name, None)
    if found is None:
        raise _validate.InputError(f"{path.name}: expected {wanted} named {name}, got no such name")
    return found, module, f"{path.name}: {name}"


def _found(target: str) -> tuple[Any, ModuleType, str]:
    """Returns what the target names, its module, and a message if the module lacks a pair of inputs.

    Raises:
      InputError: no such file or name, a file that raises when it is run, a name for something else.
    """
    found, module, place = find(target, "a case or mechanism")
    if isinstance(found, Case):
        return found, module, ""
    if not isinstance(found, Mechanism) and not callable(found):
        raise _validate.expected(place, "a Case, a Mechanism or a function of (key, x)", found)
    missing = [pair for pair in ("x0", "x1") if not hasattr(module, pair)]
    file, _, name = place.rpartition(": ")
    sentence = f"{file}: expected x0 and x1 beside {name}, got no {' and no '.join(missing)}"
    return found, module, sentence if missing else ""


def _run(path: Path) -> ModuleType:
    """Runs a file as a module; it can import files beside it, as a script can."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise _validate.expected("target", "a Python file, named *.py, before the colon", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        cause = _validate.one_line(f"{type(error).__name__}: {error}")
        raise _validate.InputError(f"{path.name}: expected a file that runs, got {cause}") from None
    return module
