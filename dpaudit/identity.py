"""What a run is, part by part, so that a checkpoint is taken up by the same run alone.

    identity = {"key": digest([raw(key)]), "program": digest([text(jaxpr)]), "data": digest(map(raw, leaves))}

A digest is the same in every process that makes the same run.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from dpaudit import check

Identity = dict[str, str]


def raw(leaf: Any) -> bytes:
    """The bytes of an array, or of a random key."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf).tobytes()


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed random key."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def text(value: Any) -> bytes:
    """A program or a setting as text, less the addresses that differ from process to process."""
    return re.sub(r"0x[0-9a-f]+", "", str(value)).encode()


def program(traced: ClosedJaxpr) -> list[bytes]:
    """A program as text and all arrays that it closes over, those of programs inside it too."""
    return [text(traced.jaxpr), *map(raw, closed_over(traced))]


def closed_over(traced: ClosedJaxpr) -> list[Any]:
    """The arrays that a program and those inside it close over."""
    params = (leaf for eqn in traced.jaxpr.eqns for leaf in jax.tree.leaves(list(eqn.params.values())))
    closed = (leaf if isinstance(leaf, ClosedJaxpr) else ClosedJaxpr(leaf, ()) for leaf in params if is_program(leaf))
    return [*traced.consts, *(value for inner in closed for value in closed_over(inner))]


def is_program(value: Any) -> bool:
    """Whether a parameter of an operation is a program."""
    return isinstance(value, (ClosedJaxpr, Jaxpr))


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of the parts, each with its length."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()


def of_run(step: Callable[[Any, Any, Any], Any], *, key: Any, start: Any, data: Any, **settings: Any) -> Identity:
    """What a run of many steps is: its key, its start, the program of a step, its data and its settings.

    Args:
      step: ``step(key, state, data)``, a pure function that JAX can trace.
      key, start, data: what it is called with first.
      **settings: more parts, by name, compared as text.
    """
    traced = jax.make_jaxpr(step)(key, start, data)
    return {
        "key": digest([raw(key)]),
        "start": digest(map(raw, jax.tree.leaves(start))),
        "program": digest(program(traced)),
        "data": digest(map(raw, jax.tree.leaves(data))),
    } | {name: digest([text(value)]) for name, value in settings.items()}


def refuse_another(wanted: Identity, found: Identity, run: str, name: str) -> None:
    """Nothing, where the checkpoint ``name`` is of this ``run``.

    Raises:
      InputError: a checkpoint of another one; the message names the parts that differ.
    """
    others = [part for part in wanted if found.get(part) != wanted[part]]
    if others:
        raise check.expected(
            "checkpoint", f"one of this {run}", f"{name}: made by another {' and another '.join(others)}"
        )
