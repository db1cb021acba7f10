"""Runs a traced mechanism equation by equation, and notes which key is consumed where and which values are noise.

The equations of a jaxpr are evaluated one at a time on real values; calls, branches and loops that draw are entered.
Keys are compared by value, so it does not matter whether a key was carried, sliced, mapped or wrapped. A call of a
jax.random function is one draw. The body of ``shard_map`` is evaluated as a whole, and its draws are not seen.

``jax.debug_key_reuse`` follows variables instead of values. It does not see raw words as keys, equal keys by equal
``fold_in`` or equal rows of a mapped key, and it refuses two draws of which a ``where`` uses one.
"""

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit._engine.walk import walk

# The label of a value says what it is made of; an output takes the largest label of its inputs. NOISE is a draw that
# no data has been added to yet.
CONSTANT, DATA, KEY, MIXED, NOISE = range(5)


def is_key(array: Any) -> bool:
    """Tells whether this is an array of typed keys."""
    return jnp.issubdtype(getattr(array, "dtype", np.dtype(float)), jax.dtypes.prng_key)


def key_words(leaf: Any) -> Any:
    """Returns the words of a key, and anything else as it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


class Value(NamedTuple):
    array: Any
    label: int


class Use(NamedTuple):
    """One consumption of one key: ``place`` numbers the consumptions of a run, ``row`` the keys of an array.

    ``again``: whether it repeats another use of the same line on purpose, in the backward pass of ``jax.checkpoint``.
    ``loop``, ``turn``: a loop of a jax.random function, where it is one, and how often this loop has consumed the key
    at this line before. ``jax.random.binomial`` has two that share a key; those of one call have the same turn.
    """

    key: bytes
    place: int
    row: int
    kind: str  # "draw" | "split"
    where: str
    again: bool
    loop: str
    turn: int

    def repeats(self, other: "Use") -> bool:
        """Tells whether this use and the other one are one draw of the user's."""
        return self.where == other.where and (self.again or (bool(self.loop) and self.turn == other.turn))


class Swap(NamedTuple):
    """Take another key at this place and row."""

    place: int
    row: int
    salt: int


class Tape:
    """The notes of one run: which keys are consumed, and noise of low precision."""

    def __init__(self, swap: Swap | None = None):
        self.swap = swap
        self.uses: list[Use] = []
        self.coarse: list[tuple[str, str]] = []  # (dtype, where)
        self.places = 0
        self.again = False
        self.turns: Counter[tuple[bytes, str, str]] = Counter()

    @contextlib.contextmanager
    def repeating(self, again: bool) -> Iterator[None]:
        """Marks the uses within as ``again``."""
        outside, self.again = self.again, self.again or again
        yield
        self.again = outside

    def consume(self, words: np.ndarray, kind: str, where: str, loop: str = "") -> np.ndarray:
        """Notes the keys ``words`` [n, words of a key] and returns the keys to use, one of them swapped if asked."""
        place, self.places = self.places, self.places + 1
        for row, word in enumerate(words):
            own = word.tobytes(), where, loop
            self.uses.append(Use(own[0], place, row, kind, where, self.again, loop, self.turns[own]))
            self.turns[own] += 1
        if self.swap is not None and self.swap.place == place:
            words = words.copy()
            words[self.swap.row] ^= np.asarray(0x9E3779B9 * self.swap.salt % 2**32, words.dtype)
        return words


CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
REMATS = {"checkpoint", "remat", "remat2"}
DRAWS = {"random_bits", "random_gamma", "threefry2x32"}
SCALINGS = {"mul", "div"}  # noise times a data-dependent scale is still noise
JAX_FOLDER = os.path.dirname(jax.__file__) + os.sep
RANDOM_FOLDER = os.path.join(JAX_FOLDER, "_src", "random")


class Run(NamedTuple):
    """The release, the label of each of its leaves, and the tape."""

    leaves: list[Any]
    labels: list[int]
    tape: Tape


def run(program: Any, key: jax.Array, x: Any, swap: Swap | None = None) -> Run:
    """Evaluates ``program``, a closed jaxpr of (key, x)."""
    tape = Tape(swap)
    arguments = [Value(key, KEY), *(Value(jnp.asarray(leaf), DATA) for leaf in jax.tree.leaves(x))]
    results = _walk(tape, program, arguments, "")
    return Run([value.array for value in results], [value.label for value in results], tape)


def _walk(tape: Tape, program: Any, arguments: Sequence[Value], inherited: str) -> list[Value]:
    return walk(
        program,
        arguments,
        lambda equation, inputs: _step(tape, equation, inputs, inherited or _line(equation)),
        constant=lambda value: Value(value, CONSTANT),
        literal=lambda atom: Value(atom.val, CONSTANT),
    )


def _step(tape: Tape, equation: Any, inputs: list[Value], where: str) -> list[Value]:
    name, params = equation.primitive.name, equation.params
    if name in CALLS | REMATS:
        body = next(params[field] for field in ("jaxpr", "call_jaxpr", "fun_jaxpr") if field in params)
        library = _lies_in(JAX_FOLDER, body)
        if _lies_in(RANDOM_FOLDER, body) and any(is_key(value.array) for value in inputs):
            return _consume(tape, equation, inputs, "draw", where)
        if not any(value.label == NOISE for value in inputs) and not _body_draws(getattr(body, "jaxpr", body)):
            return _whole(tape, equation, inputs, where)
        with tape.repeating(bool(params.get("differentiated"))):
            return _walk(tape, body, inputs, where if library else "")
    if name in DRAWS:
        return _consume(tape, equation, inputs, "draw", where)
    if name == "random_split":
        return _consume(tape, equation, inputs, "split", where)
    if name in LOOPS and _draws(equation) and any(_lies_in(RANDOM_FOLDER, body) for body in _bodies(equation)):
        return _consume(tape, equation, inputs, "draw", where)
    if name in LOOPS and _draws(equation):
        return LOOPS[name](tape, equation, inputs)
    return _whole(tape, equation, inputs, where)


def _consume(tape: Tape, equation: Any, inputs: list[Value], kind: str, where: str) -> list[Value]:
    """Evaluates a draw or a split, which consumes every key among its inputs."""
    if equation.primitive.name == "threefry2x32":  # blocks are compared by key and counter
        blocks = np.stack([np.ravel(a) for a in np.broadcast_arrays(*(np.asarray(v.array) for v in inputs))])
        first = tape.consume(blocks.reshape(1, -1), kind, where).reshape(blocks.shape)[0]
        shape = np.broadcast_shapes(*(np.shape(v.array) for v in inputs))
        swapped = [Value(jnp.asarray(first.reshape(shape)), inputs[0].label), *inputs[1:]]
        sources = inputs[:2]
    else:
        bodies = _bodies(equation) if equation.primitive.name in LOOPS else []
        loop = " ".join(str(getattr(body, "jaxpr", body).debug_info.func_src_info) for body in bodies)
        swapped = [Value(_renew(tape, v.array, kind, where, loop), v.label) if is_key(v.array) else v for v in inputs]
        sources = [value for value in inputs if is_key(value.array)]
    outputs = _bind(equation, swapped)
    label = max(value.label for value in sources)
    if label >= KEY and kind == "draw":
        label = MIXED if any(value.label in (DATA, MIXED) for value in inputs) else NOISE
    return _note_coarse(tape, inputs, [Value(array, _seen(array, label)) for array in outputs], where)


def _renew(tape: Tape, keys: jax.Array, kind: str, where: str, loop: str) -> jax.Array:
    data = np.asarray(jax.random.key_data(keys))
    words = data.reshape(keys.size, -1)
    renewed = tape.consume(words, kind, where, loop)
    if renewed is words:
        return keys
    return jax.random.wrap_key_data(jnp.asarray(renewed.reshape(data.shape)), impl=jax.random.key_impl(keys))


def _whole(tape: Tape, equation: Any, inputs: list[Value], where: str) -> list[Value]:
    """Evaluates one equation that consumes no key, or none that can be seen."""
    labels = [value.label for value in inputs]
    label = max(labels, default=CONSTANT)
    added = any(other in (DATA, MIXED) for other in labels)
    if label == NOISE and added and equation.primitive.name not in SCALINGS:
        label = MIXED
    return _note_coarse(tape, inputs, [Value(a, _seen(a, label)) for a in _bind(equation, inputs)], where)


def _note_coarse(tape: Tape, inputs: list[Value], outputs: list[Value], where: str) -> list[Value]:
    """Notes where noise first takes a type narrower than float32."""
    if not any(_is_coarse(value) for value in inputs):
        tape.coarse += [(str(value.array.dtype), where) for value in outputs if _is_coarse(value)]
    return outputs


def _is_coarse(value: Value) -> bool:
    if value.label != NOISE or is_key(value.array):
        return False
    dtype = jnp.result_type(value.array)
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


def _seen(array: Any, label: int) -> int:
    """Returns the label of an output: a boolean outcome of a draw is no longer noise."""
    return min(label, MIXED) if jnp.issubdtype(jnp.asarray(array).dtype, jnp.bool_) else label


def _bind(equation: Any, inputs: list[Value]) -> list[Any]:
    params = equation.primitive.get_bind_params(equation.params)
    outputs = equation.primitive.bind(*(value.array for value in inputs), **params)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _scan(tape: Tape, equation: Any, inputs: list[Value]) -> list[Value]:
    params = equation.params
    if "ft_in" in params:  # jax 0.11
        first, carried, _ = (len(part) for part in params["ft_in"].unpack())
    else:
        first, carried = params["num_consts"], params["num_carry"]
    constants, carry, stacked = inputs[:first], inputs[first : first + carried], inputs[first + carried :]
    order = range(params["length"])[:: -1 if params["reverse"] else 1]
    rows: dict[int, list[Value]] = {}
    for step in order:
        slices = [Value(value.array[step], value.label) for value in stacked]
        results = _walk(tape, params["jaxpr"], [*constants, *carry, *slices], "")
        carry, rows[step] = results[: len(carry)], results[len(carry) :]
    columns = zip(*(rows[step] for step in sorted(rows)), strict=True)
    return [*carry, *(Value(jnp.stack([v.array for v in c]), max(v.label for v in c)) for c in columns)]


def _while(tape: Tape, equation: Any, inputs: list[Value]) -> list[Value]:
    params = equation.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    asked, constants, carry = inputs[:first], inputs[first:second], inputs[second:]
    going = _walk(tape, params["cond_jaxpr"], [*asked, *carry], "")[0]
    while going.array.any():
        moved = _walk(tape, params["body_jaxpr"], [*constants, *carry], "")
        carry = [_advanced(going.array, old, new) for old, new in zip(carry, moved, strict=True)]
        going = _walk(tape, params["cond_jaxpr"], [*asked, *carry], "")[0]
    return _decided(going, carry)


def _advanced(going: jax.Array, old: Value, new: Value) -> Value:
    """Keeps the rows that are done, where a mapped loop has one condition per row."""
    if not going.ndim:
        return new
    mask = going.reshape(going.shape + (1,) * (new.array.ndim - going.ndim))
    return Value(jnp.where(mask, new.array, old.array), max(old.label, new.label))


def _cond(tape: Tape, equation: Any, inputs: list[Value]) -> list[Value]:
    branches = equation.params["branches"]
    taken = min(max(int(inputs[0].array), 0), len(branches) - 1)
    return _decided(inputs[0], _walk(tape, branches[taken], inputs[1:], ""))


def _decided(by: Value, values: list[Value]) -> list[Value]:
    """Labels values that a draw has decided as dependent on it."""
    return [Value(v.array, max(v.label, MIXED)) for v in values] if by.label >= KEY else values


LOOPS = {"scan": _scan, "while": _while, "cond": _cond}


def _draws(equation: Any) -> bool:
    """Tells whether a loop or branch consumes a key; an empty scan does not."""
    return equation.params.get("length") != 0 and any(_body_draws(body) for body in _bodies(equation))


@functools.lru_cache(maxsize=1024)
def _body_draws(jaxpr: Any) -> bool:
    consuming = DRAWS | {"random_split"}
    return any(e.primitive.name in consuming or any(map(_body_draws, _bodies(e))) for e in jaxpr.eqns)


def _bodies(equation: Any) -> list[Any]:
    fields = [f for p in equation.params.values() for f in (p if isinstance(p, (tuple, list)) else (p,))]
    return [jaxpr for jaxpr in (getattr(field, "jaxpr", field) for field in fields) if hasattr(jaxpr, "eqns")]


def _lies_in(folder: str, body: Any) -> bool:
    return (getattr(body, "jaxpr", body).debug_info.func_filename or "").startswith(folder)


def _line(equation: Any) -> str:
    """Returns ``file:line`` of the innermost frame outside JAX, or nothing."""
    traceback = equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    return next((f"{f.file_name}:{f.line_num}" for f in frames if not f.file_name.startswith(JAX_FOLDER)), "")
