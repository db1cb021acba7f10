"""Wraps mechanisms that are not JAX: Python functions of a NumPy generator, with releases of any type."""

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import jax
import numpy as np

from dpaudit import _validate
from dpaudit._engine import fingerprint
from dpaudit.auditing.host import chunks
from dpaudit.auditing.host.chunks import Plan
from dpaudit.auditing.host.pool import failure
from dpaudit.auditing.host.worker import one_line

SECONDS_PER_CALL = 600.0


class HostMechanism:
    """A function on the host as a mechanism, made by :func:`on_host`.

    :func:`dpaudit.audit` runs its trials directly. Everything else that takes a function of (key, x), such as
    :func:`dpaudit.play`, calls it from JAX, one trial at a time; its releases must then be numbers of one shape.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        workers: int | None,
        setup: Callable[[], Any] | None,
        features: Callable[[Any], Any] | None,
        batched: bool,
        chunk: int,
        seconds_per_call: float,
    ) -> None:
        self.__name__ = type(function).__name__
        update_wrapper(self, function, updated=())
        self.function, self.setup, self.features = function, setup, features
        self.workers, self.seconds_per_call = workers, seconds_per_call
        self.batched, self.chunk = batched, chunk
        self._ready: Callable[..., Any] | None = None

    def plan(self, x0: Any, x1: Any, trials: int, key: jax.Array) -> Plan:
        """Returns the plan of ``trials`` trials in each world."""
        words = tuple(int(word) for word in np.asarray(jax.random.key_data(key)).reshape(-1))
        inputs = _off_device(x0), _off_device(x1)
        return Plan(self.function, inputs, self.setup, self.features, self.batched, self.chunk, trials, words)

    def told(self) -> list[bytes]:
        """Returns bytes that identify the function by its name and by :func:`fingerprint.of_function`."""
        found = [self.__name__.encode(), str((self.batched, self.chunk)).encode()]
        for function in (self.function, self.setup, self.features):
            found += fingerprint.of_function(function)
        return found

    def __call__(self, key: jax.Array, x: Any) -> Any:
        """Runs one trial from JAX; the generator is seeded only by the key."""
        x = _off_device(x)
        leaves, structure = jax.tree.flatten(self._release(np.random.default_rng(0), x))
        shapes = [jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)) for leaf in leaves]

        def call(words: Any) -> list[np.ndarray]:
            """Maps words [..., k], one key a row, to the leaves of as many releases, [..., *shape] each."""
            words = np.asarray(words)
            rows = words.reshape(-1, words.shape[-1])
            releases = [jax.tree.leaves(self._release(np.random.default_rng(row), x)) for row in rows]
            return [
                np.stack(column).astype(shape.dtype).reshape((*words.shape[:-1], *shape.shape))
                for column, shape in zip(zip(*releases, strict=True), shapes, strict=True)
            ]

        words = jax.random.key_data(key)
        return jax.tree.unflatten(structure, jax.pure_callback(call, shapes, words, vmap_method="expand_dims"))

    def _release(self, rng: np.random.Generator, x: Any) -> Any:
        """Returns one release with NumPy arrays of numbers as leaves."""
        try:
            if self._ready is None:
                plan = Plan(self.function, (None, None), self.setup, None, self.batched, 1, 1, ())
                self._ready = chunks.ready(plan)
            release = self._ready(rng, x, 1) if self.batched else self._ready(rng, x)
        except SystemExit as error:  # which would end the caller without a word
            raise failure(one_line(error), self.__name__) from None
        return jax.tree.map(lambda leaf: _array(leaf)[0] if self.batched else _array(leaf), release)


def on_host(
    function: Callable[..., Any],
    *,
    workers: int | None = None,
    setup: Callable[[], Any] | None = None,
    features: Callable[[Any], Any] | None = None,
    batched: bool | None = None,
    chunk: int | None = None,
    seconds_per_call: float = SECONDS_PER_CALL,
) -> HostMechanism:
    """Makes a mechanism of any Python function, in particular one that JAX cannot trace.

        dpaudit.audit(dpaudit.on_host(fn), x0, x1, key=key, trials=10_000, claim=dpaudit.Claim(1.0))

    Inputs may be any objects: lists of rows, strings, tables. So may releases. Numbers and arrays of one shape keep
    their types, including float64 and 64-bit integers; where types vary, they are read too. From anything else (text,
    bytes, None, sets, dictionaries, lists of any length, tables, Decimal, large integers) the audit reads how often
    items occur, sizes, order, numbers and their summaries, and what stands at each place, by a vocabulary that it
    learns from a pilot among the trials set aside. It warns if a part is not read, such as the end of a text of more
    than 4,096 characters.

    Trials run in chunks. Each chunk has its own generator, a function of the audit's key, the world and the number of
    the chunk, so results do not depend on the number of workers, the batch size or restarts, as long as the function
    draws from nothing else. If it does (libraries may draw from the operating system), the result says that it is not
    reproducible; its bounds still hold. Trials of both worlds alternate in random order, so a counter, a budget or
    the time, which changes from call to call, is not mistaken for a leak. But releases must not depend on the inputs
    of earlier calls: make such a state anew in each call.

    Args:
      function: ``function(rng, x) -> release`` with a ``numpy.random.Generator`` and the input as it was given, JAX
        arrays as NumPy's; or ``function(rng, x, n) -> n releases``, in a list or as arrays with a leading axis.
      workers: number of processes that run trials, each with one thread. They are started by spawning, so
        ``function``, ``setup``, ``features`` and the inputs must be picklable, the functions defined in an importable
        module, and a script must keep its calls under ``if __name__ == "__main__"``. None or 0 runs them in this
        process, which is faster if a call takes a few microseconds. What the function prints goes to standard error.
        Several are refused for a function that draws all its noise from a generator of its own with a fixed seed.
      setup: called once in each process before the first trial, for slow imports and preparations. Its result, unless
        None, is passed to each call as ``state=``. It may take any time: one that hangs is ended by an interruption.
      features: ``features(release) -> numbers`` of your own, equally many for each release, read besides the others.
      batched: whether ``function`` takes n; None looks for a parameter named ``n``, or a third one without default.
      chunk: number of trials that share a generator, and of releases of a batched call; by default 32, or 4,096 if
        batched. Choose a smaller one if so many releases do not fit into memory.
      seconds_per_call: the audit fails if one call in a worker takes longer.

    Returns:
      A function of (key, x) that :func:`dpaudit.audit` and :class:`dpaudit.Mechanism` take.

    Raises:
      InputError: not a function; a value out of range.
    """
    if not callable(function):
        raise _validate.expected("function", "a function of (rng, x)", function)
    for name, value in (("setup", setup), ("features", features)):
        if value is not None and not callable(value):
            raise _validate.expected(name, "a function or None", value)
    workers = None if workers is None else _validate.at_least(0, workers=workers)
    batched = _takes_n(function) if batched is None else bool(batched)
    chunk = (chunks.AT_ONCE if batched else chunks.ONE_BY_ONE) if chunk is None else _validate.at_least(1, chunk=chunk)
    _validate.positive(seconds_per_call=seconds_per_call)
    return HostMechanism(function, workers, setup, features, batched, chunk, float(seconds_per_call))


def _takes_n(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C
        return False
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    third = places[2:3]
    return any(one.name == "n" or (one.default is one.empty and one.name != "state") for one in third)


def _off_device(x: Any) -> Any:
    """Returns an input with NumPy arrays instead of JAX's, whose operations could be traced."""
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        return x
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, x)


def _array(leaf: Any) -> np.ndarray:
    leaf = np.array(leaf)  # a copy, as the function may write the next release to the same memory
    if leaf.dtype.kind not in "biuf":
        raise _validate.expected("release", "numbers", f"type {leaf.dtype}")
    return leaf
