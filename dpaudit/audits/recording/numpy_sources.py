"""Records all methods of NumPy's generators, new and legacy, and follows noise that has a location and a scale."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpaudit.audits.recording import affine, noisy
from dpaudit.audits.recording.trace import Seed, Stage, Trace, caller

# method -> (law, arguments, defaults): location and scale by name, the others are parameters of the law
FOLLOWED = {
    "laplace": ("laplace", {"loc": 0.0, "scale": 1.0}),
    "normal": ("gaussian", {"loc": 0.0, "scale": 1.0}),
    "standard_normal": ("gaussian", {}),
    "randn": ("gaussian", {}),
    "gumbel": ("gumbel", {"loc": 0.0, "scale": 1.0}),
    "logistic": ("logistic", {"loc": 0.0, "scale": 1.0}),
    "exponential": ("exponential", {"scale": 1.0}),
    "standard_exponential": ("exponential", {}),
    "standard_cauchy": ("cauchy", {}),
    "standard_t": ("student", {"df": None}),
    "gamma": ("gamma", {"shape": None, "scale": 1.0}),
    "standard_gamma": ("gamma", {"shape": None}),
    "uniform": ("uniform", {"low": 0.0, "high": 1.0}),
    "random": ("uniform", {}),
    "random_sample": ("uniform", {}),
    "ranf": ("uniform", {}),
    "rand": ("uniform", {}),
    "geometric": ("geometric", {"p": None}),
    "poisson": ("poisson", {"lam": 1.0}),
}
UNSHAPED = {"randn", "rand"}  # their arguments are the shape
OTHERS = {  # method -> its arguments
    "integers": "low high size dtype endpoint",
    "randint": "low high size dtype",
    "random_integers": "low high size",
    "choice": "a size replace p axis shuffle",
    "permutation": "x axis",
    "permuted": "x",
    "shuffle": "x axis",
    "bytes": "length",
    "binomial": "n p size",
    "negative_binomial": "n p size",
    "multinomial": "n pvals size",
    "dirichlet": "alpha size",
    "beta": "a b size",
    "chisquare": "df size",
    "f": "dfnum dfden size",
    "hypergeometric": "ngood nbad nsample size",
    "logseries": "p size",
    "lognormal": "mean sigma size",
    "multivariate_normal": "mean cov size",
    "multivariate_hypergeometric": "colors nsample size",
    "noncentral_chisquare": "df nonc size",
    "noncentral_f": "dfnum dfden nonc size",
    "pareto": "a size",
    "power": "a size",
    "rayleigh": "scale size",
    "triangular": "left mode right size",
    "vonmises": "mu kappa size",
    "wald": "mean scale size",
    "weibull": "a size",
    "zipf": "a size",
    "tomaxint": "size",
}
MOVING = {"permutation", "permuted", "shuffle"}
WHOLE = {"geometric", "poisson"}
GENERATOR, STATE, MAKE = np.random.Generator, np.random.RandomState, np.random.default_rng
FIRST_STATE = 2**63  # a seed that is not given is drawn below this number


def followed(
    trace: Trace, source: str, law: str, location: Any, scale: Any, size: Any, make: Callable[[Any], Any], **more: Any
) -> Any:
    """Draws noise that is followed: ``location + scale * z``, with z from ``make(shape)``.

    Args:
      more: further parameters of the distribution.
    """
    lone = size is None and np.ndim(location) == np.ndim(scale) == 0 and not any(map(np.ndim, more.values()))
    free = tuple(np.shape(one) for one in (location, scale, *more.values()))
    shape = (
        () if lone else np.broadcast_shapes(*free) if size is None else tuple(np.atleast_1d(size).astype(int).tolist())
    )
    if not (trace.follows and trace.is_open):
        value = location + scale * make(shape)
        return np.asarray(value)[()] if lone else value
    raw = np.asarray(trace.draw(source, law, None if lone else shape, lambda: make(shape), more))
    ids = trace.block(raw.size, law, lattice=float(law in WHOLE), draw=len(trace.draws) - 1).reshape(shape)
    scale_parts, location_parts = noisy.parts(scale), noisy.parts(location)
    value = np.asarray(noisy.plain(location)) + np.asarray(noisy.plain(scale)) * raw
    value = value.astype(raw.dtype) if law in WHOLE else value
    pure = (np.zeros(shape), scale_parts[0] if lone else np.broadcast_to(scale_parts[0], shape), ids)
    made = affine.add(trace, location_parts, pure)
    inputs = tuple(tag.node for tag in map(noisy.tag_of, (location, scale)) if tag is not None)
    alone = not inputs and not np.any(location_parts[0])
    return noisy.wrap(*trace.node("draw", value[()] if lone else value, *made, inputs=inputs, pure=alone))


def _followed_method(name: str, law: str, defaults: dict[str, Any]) -> Callable[..., Any]:
    names = [*defaults, "size"]

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        draw = getattr(self.twin, name)
        if not self.trace.is_open:
            return draw(*args, **kwargs)
        given: dict[str, Any] = {"size": args or None}
        if name not in UNSHAPED:
            given = defaults | dict(zip(names, args)) | kwargs  # noqa: B905
        given = {key: one for key, one in given.items() if key != "method"}
        size, out, dtype = given.pop("size", None), given.pop("out", None), given.pop("dtype", np.float64)
        size = np.shape(out) if out is not None else size
        low, high = given.pop("low", 0.0), given.pop("high", 1.0)
        location, scale = given.pop("loc", low), given.pop("scale", high - low)
        own = [noisy.plain(one) for one in given.values()]

        def make(shape: Any) -> Any:
            return draw(*shape) if name in UNSHAPED else draw(*own, size=shape)

        result = followed(self.trace, f"{self.named}.{name}", law, location, scale, size, make, **given)
        if out is not None:
            out[...] = noisy.plain(result)
        return result if np.dtype(dtype) == np.float64 else result.astype(dtype)

    method.__name__ = name
    return method


def _recorded_method(name: str, names: list[str]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        draw = getattr(self.twin, name)
        if not self.trace.is_open:
            return draw(*args, **kwargs)
        given = dict(zip(names, map(noisy.plain, args))) | {key: noisy.plain(one) for key, one in kwargs.items()}  # noqa: B905
        size = given.get("size")
        shape = None if size is None else tuple(np.atleast_1d(size).tolist())
        record = partial(self.trace.draw, f"{self.named}.{name}", name, followed=False)
        if name in MOVING and np.ndim(given["x"]):  # records places, not their contents, which may be data
            return _moved(name, args[0] if args else kwargs["x"], kwargs.get("out"), given, record, self.twin)
        if name == "choice" and np.ndim(given["a"]):
            items, axis = given.pop("a"), given.pop("axis", 0)
            given = {"a": np.shape(items)[axis]} | given
            return np.take(np.asarray(items), record(shape, lambda: draw(**given), given), axis)
        own = {key: one for key, one in given.items() if key != "size"}
        return record(shape, lambda: draw(*map(noisy.plain, args), **{k: given[k] for k in kwargs}), own)

    method.__name__ = name
    return method


def _moved(name: str, items: Any, out: Any, given: dict[str, Any], record: Callable[..., Any], twin: Any) -> Any:
    """Returns or makes the order at random that a method of this name gives to items."""
    axis, shape = given.get("axis", None if name == "permuted" else 0), np.shape(given["x"])
    if name == "permuted":
        places = record(shape, lambda: twin.permuted(np.arange(math.prod(shape)).reshape(shape), axis=axis))
        moved = np.ravel(np.asarray(items))[places]
        if out is None:
            return moved
        out[...] = moved
        return out
    order = record((shape[axis],), lambda: twin.permutation(shape[axis]))
    if name == "permutation":
        return np.take(np.asarray(items), order, axis)
    at = (slice(None),) * (axis % len(shape)) + (order,)
    items[:] = [items[place] for place in order] if isinstance(items, list) else items[at]
    return None


def _methods(base: type) -> dict[str, Any]:
    made = {
        name: _followed_method(name, law, defaults)
        for name, (law, defaults) in FOLLOWED.items()
        if hasattr(base, name)
    }
    return made | {
        name: _recorded_method(name, names.split()) for name, names in OTHERS.items() if hasattr(base, name)
    }


class RecordingGenerator(np.random.Generator):
    """A generator whose draws are recorded."""

    trace: Trace
    twin: np.random.Generator
    named = "numpy.random.Generator"

    def spawn(self, n_children: int) -> Any:
        return [generator(self.trace, child) for child in self.twin.spawn(n_children)]


class RecordingState(np.random.RandomState):
    """A legacy generator whose draws are recorded."""

    trace: Trace
    twin: np.random.RandomState
    named = "numpy.random.RandomState"

    def seed(self, seed: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if seed is None:
            seed = fresh_seed(self.trace) % 2**32
        else:
            self.trace.seeds.append(Seed("numpy.random.seed", repr(seed), caller()))
        self.twin.seed(seed)

    def get_state(self, legacy: Any = True) -> Any:
        return self.twin.get_state(legacy)

    def set_state(self, state: Any) -> None:
        self.twin.set_state(state)


for _recording in (RecordingGenerator, RecordingState):
    for _name, _method in _methods(_recording.__bases__[0]).items():
        setattr(_recording, _name, _method)


def generator(trace: Trace, of: np.random.Generator) -> RecordingGenerator:
    """Returns a recording generator that continues another one's stream."""
    made = RecordingGenerator(of.bit_generator)
    made.trace, made.twin = trace, of
    return made


def state(trace: Trace, of: np.random.RandomState) -> RecordingState:
    """Returns a recording legacy generator that continues another one's stream."""
    made = RecordingState(of._bit_generator)
    made.trace, made.twin = trace, of
    return made


def fresh_seed(trace: Trace) -> int:
    """Returns the seed of a generator that was given none, as a function of the run's seed."""
    return int(trace.random.integers(FIRST_STATE))


def put(stage: Stage, put: Callable[..., None]) -> None:
    """Replaces NumPy's factories, legacy functions and classes."""
    legacy = resumed(stage, RecordingState(0))

    def default_rng(seed: Any = None) -> Any:
        trace = stage.trace
        if not trace.is_open:
            return MAKE(seed)
        if seed is None:
            return fresh(trace)
        if isinstance(seed, RecordingGenerator):
            return seed
        if not isinstance(seed, GENERATOR | np.random.BitGenerator):
            trace.seeds.append(Seed("numpy.random.default_rng", _seed_text(seed), caller()))
        return generator(trace, MAKE(seed))

    def make_generator(bit_generator: Any) -> Any:
        return generator(stage.trace, GENERATOR(bit_generator))

    def make_state(seed: Any = None) -> Any:
        trace = stage.trace
        if seed is not None:
            trace.seeds.append(Seed("numpy.random.RandomState", _seed_text(seed), caller()))
        return state(trace, STATE(fresh_seed(trace) % 2**32 if seed is None else seed))

    put(np.random, "default_rng", default_rng)
    for name in dir(STATE):
        if hasattr(np.random, name) and not name.startswith("_"):
            put(np.random, name, getattr(legacy, name))
    put(np.random, "Generator", standing_for(GENERATOR, make_generator))
    put(np.random, "RandomState", standing_for(STATE, make_state))
    put(np.random.mtrand, "_rand", legacy)
    entropy: Any = np.random.bit_generator  # where NumPy asks the system for the seed of a generator that got none
    put(entropy, "randbits", lambda bits: int.from_bytes(stage.trace.random.bytes(bits // 8), "big"))


def standing_for(real: type, make: Callable[..., Any]) -> Any:
    """Returns a class that equals the real one for ``isinstance``, and whose calls return what ``make`` returns."""

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    return Meta(real.__name__, (), {})


def _seed_text(seed: Any) -> str:
    return repr(seed.entropy) if isinstance(seed, np.random.SeedSequence) else repr(seed)


def resumed(stage: Stage, made: Any) -> Any:
    """Gives a recording generator that outlives a run a new stream in each run."""

    def begin(trace: Trace) -> None:
        made.trace = trace
        seed = fresh_seed(trace)
        twin: Any = STATE(seed % 2**32) if isinstance(made, STATE) else GENERATOR(np.random.PCG64(seed))
        vars(made)["twin"] = twin

    stage.at_begin.append(begin)
    return made


def fresh(trace: Trace) -> RecordingGenerator:
    """Returns a recording generator with a new stream."""
    return generator(trace, GENERATOR(np.random.PCG64(fresh_seed(trace))))
