"""Identifies a run by digests of its parts, so that only the same run resumes from its checkpoint.

    identity = {"key": digest([raw(key)]), "program": digest(program(traced)), "data": digest(map(raw, leaves))}

A digest is the same in every process that starts the same run.
"""

import hashlib
import re
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr

from dpaudit import _validate
from dpaudit._engine import sharding
from dpaudit._engine.walk import walk

Identity = dict[str, str]
TOLD = frozenset((type(None), bool, int, float, complex, str, bytes))  # types whose text describes them completely
DERIVATIVES = ("custom_jvp_call", "custom_vjp_call")  # parameters that only derivatives need


def raw(leaf: Any) -> bytes:
    """Returns the bytes of an array, or of a random key."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf).tobytes()


def is_key(leaf: Any) -> bool:
    """Tells whether a leaf is a typed random key."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def text(value: Any) -> bytes:
    """Returns a value as text, without the addresses that differ from process to process."""
    return _without_addresses(str(value)).encode()


def _without_addresses(words: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "", words)


def program(traced: ClosedJaxpr) -> list[bytes]:
    """Returns a program as text, operation by operation, and all arrays that it and programs inside it close over.

    JAX's own text of a program takes four times as long, and omits how its random bits are generated.
    """
    return spelled(traced)[0]


def spelled(traced: ClosedJaxpr) -> tuple[list[bytes], tuple[Any, ...]]:
    """Returns :func:`program`, and the parts that text does not describe: functions called on the host, and objects.

    Two programs of one process for which both are equal compute the same.
    """
    words, objects = _spelled(traced.jaxpr, {})
    return [words.encode(), *map(raw, closed_over(traced))], tuple(objects)


def of_function(function: Any) -> list[bytes]:
    """Identifies a Python function by its code and by what it reads.

    These are the values that it closes over, has as defaults or names in its module, and, of a method or a callable
    object, the attributes of that object: numbers, text, arrays, and lists and dictionaries of these. Functions and
    classes are followed where it holds them or names them in its own module; other objects are not.
    """
    return list(_read(function, {}))


def _read(value: Any, known: dict[int, Any]) -> Iterator[bytes]:
    """Yields what identifies a value; nothing for one in ``known``, which keeps what has been read alive."""
    if _told(value):
        yield repr(value).encode()
    elif _array(value):
        yield f"{value.dtype} {value.shape}".encode()
        yield raw(value)
    elif id(value) not in known:
        known[id(value)] = value
        for part in _parts(value):
            yield from (part,) if isinstance(part, bytes) else _read(part, known)


def _parts(value: Any) -> Iterator[Any]:
    """Yields what a list, a function or the like consists of: values, and bytes that identify what has none."""
    if isinstance(value, (list, tuple)):
        plain = all(map(_told, value))
        yield from (repr(list(value)).encode(),) if plain else (f"{len(value)} of".encode(), *value)
    elif isinstance(value, dict):
        yield from (f"{len(value)} named".encode(), *(part for item in value.items() for part in item))
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, filter(_told, value)))).encode()
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, getattr(value.__self__, "__dict__", None), type(value.__self__))
    elif isinstance(value, types.FunctionType):
        codes = _codes(value.__code__)
        yield repr([word for code in codes for word in _code(code)]).encode()
        yield from (value.__defaults__, value.__kwdefaults__, *map(_held, value.__closure__ or ()))
        names = {name for code in codes for name in code.co_names} & value.__globals__.keys()
        named = {name: value.__globals__[name] for name in sorted(names)}
        yield {name: one for name, one in named.items() if not callable(one) or _module(one) == value.__module__}
    elif isinstance(value, type):
        yield from (one for name, one in sorted(vars(value).items()) if _is_written(name, one))
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif "__wrapped__" in getattr(value, "__dict__", ()):  # as of jax.jit, functools.cache
        yield value.__wrapped__
    elif is_dataclass(value) or (callable(value) and isinstance(type(value).__call__, types.FunctionType)):
        yield from (getattr(value, "__dict__", None), type(value))


def _is_written(name: str, one: Any) -> bool:
    """Tells whether an attribute of a class was written by its author, and not added by Python."""
    return isinstance(one, types.FunctionType) or not (name.startswith("__") and name.endswith("__"))


def _module(one: Any) -> Any:
    return getattr(one, "__module__", None)


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """Returns the code of a function and of those inside it."""
    return [code, *(one for inner in code.co_consts if isinstance(inner, types.CodeType) for one in _codes(inner))]


def _code(code: types.CodeType) -> tuple[bytes, Any]:
    """Returns what a code does, without those inside it; sets have no order of their own."""
    plain = [sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts]
    return code.co_code, (code.co_names, [one for one in plain if not isinstance(one, types.CodeType)])


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a name that has no value yet
        return None


def _array(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return not value.dtype.hasobject
    return isinstance(value, jax.Array) and not isinstance(value, Tracer)


def on_host(traced: ClosedJaxpr) -> list[bytes]:
    """Returns bytes that identify the functions that a program calls on the host, in order."""
    called = (getattr(part, "callback_func", None) for part in spelled(traced)[1])
    return [word for function in called for word in of_function(function)]


def standing(traced: ClosedJaxpr) -> list[Any]:
    """Takes a snapshot of a program of this process for :func:`same`; NumPy's arrays, which may change, are copied."""
    arrays = (leaf if isinstance(leaf, jax.Array) else raw(leaf) for leaf in closed_over(traced))
    return [_spelled(traced.jaxpr, {})[0], *arrays]


def same(one: list[Any], other: list[Any]) -> bool:
    """Tells whether two programs, from :func:`standing`, are the same except for functions they call on the host.

    An array object that both hold is not compared by its numbers.
    """
    if len(one) != len(other):
        return False
    return all(a is b or _bytes(a) == _bytes(b) for a, b in zip(one, other, strict=True))


def _bytes(part: Any) -> Any:
    return raw(part) if isinstance(part, jax.Array) else part


def _spelled(jaxpr: Any, known: dict[int, tuple[str, list[Any]]]) -> tuple[str, list[Any]]:
    """Returns a program as text, and the objects that text does not describe; programs in ``known`` are looked up."""
    if id(jaxpr) in known:
        return known[id(jaxpr)]
    numbers = count()
    given = [(f"v{next(numbers)}", var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)]
    words = [word for name, kind in given for word in (name, str(kind))]
    objects: list[Any] = []

    def step(eqn: Any, inputs: list[str]) -> list[str]:
        outputs = [f"v{next(numbers)}" for _ in eqn.outvars]
        words.extend((eqn.primitive.name, str(eqn.ctx.threefry_partitionable), *inputs, "->", *outputs))
        if not objects or objects[-1] is not eqn.ctx:
            objects.append(eqn.ctx)
        for key, value in eqn.params.items():
            words.append(key)
            for leaf in (value,) if _told(value) else _leaves(value):
                if _told(leaf):
                    words.append(repr(leaf))
                elif isinstance(leaf, (ClosedJaxpr, Jaxpr)):
                    inner, others = _spelled(getattr(leaf, "jaxpr", leaf), known)
                    words.append(inner)
                    objects.extend(others)
                else:
                    words.append(_without_addresses(str(leaf)))
                    if eqn.primitive.name not in DERIVATIVES:
                        objects.append(leaf)  # JAX requires that all of these can be compared
        return outputs

    # Constants are told apart by their places alone; `closed_over` gives their values.
    names = [name for name, _ in given]
    split = len(jaxpr.constvars)
    results = walk(
        jaxpr, names[split:], step, constants=names[:split], literal=lambda atom: _number(atom.val, atom.aval)
    )
    known[id(jaxpr)] = f"({' '.join([*words, *results])})", objects
    return known[id(jaxpr)]


def _number(value: Any, kind: Any) -> str:
    return f"{raw(value).hex()}:{kind.dtype}"


def closed_over(traced: ClosedJaxpr | Jaxpr) -> list[Any]:
    """Returns the arrays that a program and those inside it close over."""
    jaxpr = traced if isinstance(traced, Jaxpr) else traced.jaxpr
    leaves = (leaf for eqn in jaxpr.eqns for value in eqn.params.values() for leaf in _leaves(value))
    inner = (leaf for leaf in leaves if isinstance(leaf, (ClosedJaxpr, Jaxpr)))
    return [*getattr(traced, "consts", ()), *(value for one in inner for value in closed_over(one))]


def _leaves(value: Any) -> Any:
    """Returns a parameter of an operation as a tuple, of one or of several."""
    return value if isinstance(value, tuple) else (value,)


def _told(value: Any) -> bool:
    """Tells whether a value is completely described by its text."""
    if type(value) is tuple:
        return all(map(_told, value))
    return type(value) in TOLD or isinstance(value, (np.dtype, Enum))


def digest(parts: Iterable[bytes]) -> str:
    """Returns the SHA-256 of the parts, each with its length."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()


def of_run(step: Callable[[Any, Any, Any], Any], *, key: Any, start: Any, data: Any, **settings: Any) -> Identity:
    """Identifies a run of many steps by its key, its start, the program of a step, its data and its settings.

    The program is that of one core: a CPU's cores only say in which parts sums are added up, and a run goes on where
    there are more or fewer of them.

    Args:
      step: ``step(key, state, data)``, a pure function that JAX can trace.
      key, start, data: the arguments of its first call.
      **settings: more parts, by name, compared as text.
    """
    with sharding.CORES(1):
        traced = jax.make_jaxpr(step)(key, start, data)
    return {
        "key": digest([raw(key)]),
        "start": digest(map(raw, jax.tree.leaves(start))),
        "program": digest(program(traced)),
        "data": digest(map(raw, jax.tree.leaves(data))),
    } | {name: digest([text(value)]) for name, value in settings.items()}


def refuse_another(wanted: Identity, found: Identity, run: str, name: str) -> None:
    """Refuses the checkpoint ``name`` if it is not of this ``run``.

    Raises:
      InputError: a checkpoint of another run; the message names the parts that differ.
    """
    others = [part for part in wanted if found.get(part) != wanted[part]]
    if others:
        raise _validate.expected(
            "checkpoint", f"one of this {run}", f"{name}: made by another {' and another '.join(others)}"
        )
