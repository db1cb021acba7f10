"""Records the module ``random``, its generators, and the operating system's randomness (``os.urandom``)."""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit.audits.recording.numpy_sources import followed, fresh_seed
from dpaudit.audits.recording.trace import Seed, Stage, Trace, caller

PLAIN = "betavariate choice choices gammavariate getrandbits lognormvariate paretovariate randbytes randint randrange"
PLAIN += " sample shuffle triangular vonmisesvariate weibullvariate"
ITEMS = {"shuffle": "x", "sample": "population", "choice": "seq", "choices": "population"}  # first argument
RANDOM = random.Random


def resumed(stage: Stage, old: random.Random) -> Any:
    """Returns a generator that replaces one held by a module, with its own stream in every run."""
    made: Any = stage.random_class(0)
    stage.at_begin.append(lambda trace: made.setstate(RANDOM(fresh_seed(trace)).getstate()))
    return made


def put(stage: Stage, put: Callable[..., None]) -> None:
    """Replaces the module's functions, its classes and ``os.urandom``."""
    real = RANDOM

    def own(generator: Any) -> Any:
        """Returns the plain generator that a recorded one draws from."""
        if isinstance(generator, random.SystemRandom) or generator is random._inst:  # pyright: ignore
            return shared
        twin = twins.get(id(generator))
        if twin is None:
            twin = real.__new__(real)
            twin.setstate(real.getstate(generator))
            twins[id(generator)] = twin
            kept.append(generator)
        return twin

    twins: dict[int, Any] = {}
    kept: list[Any] = []
    shared = real(0)

    def begin(trace: Trace) -> None:
        twins.clear()
        kept.clear()
        shared.seed(fresh_seed(trace))

    stage.at_begin.append(begin)
    basic = {
        name: getattr(real, name) for name in (*PLAIN.split(), "expovariate", "random", "seed", "setstate", "getstate")
    }

    def uniform_from(name: str, generator: Any) -> Callable[[Any], Any]:
        return lambda shape: np.asarray(basic[name](own(generator)))

    def place(generator: Any) -> str:
        return "random.SystemRandom" if isinstance(generator, random.SystemRandom) else "random"

    def draws_uniform(self: Any) -> Any:
        return followed(stage.trace, f"{place(self)}.random", "uniform", 0.0, 1.0, None, uniform_from("random", self))

    def uniform(self: Any, a: float, b: float) -> Any:
        return followed(stage.trace, f"{place(self)}.uniform", "uniform", a, b - a, None, uniform_from("random", self))

    def gauss(self: Any, mu: float = 0.0, sigma: float = 1.0) -> Any:
        def make(shape: Any) -> Any:
            return np.asarray(real.normalvariate(own(self), 0.0, 1.0))

        return followed(stage.trace, f"{place(self)}.gauss", "gaussian", mu, sigma, None, make)

    def expovariate(self: Any, lambd: float = 1.0) -> Any:
        def make(shape: Any) -> Any:
            return np.asarray(basic["expovariate"](own(self), 1.0))

        return followed(stage.trace, f"{place(self)}.expovariate", "exponential", 0.0, 1.0 / lambd, None, make)

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        if a is not None:
            stage.trace.seeds.append(Seed("random.seed", repr(a), caller()))
        basic["seed"](own(self), fresh_seed(stage.trace) if a is None else a)

    def plain(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            source = f"{place(self)}.{name}"
            if name in ITEMS:
                items = args[0] if args else kwargs.pop(ITEMS[name])
                count = len(items)
                indices = list(range(count))
                if name == "shuffle":
                    order = stage.trace.draw(
                        source, name, (count,), lambda: real.sample(own(self), indices, count), followed=False
                    )
                    items[:] = [items[at] for at in order]
                    return None
                at = stage.trace.draw(
                    source,
                    name,
                    (count,),
                    lambda: basic[name](own(self), indices, *args[1:], **kwargs),
                    followed=False,
                )
                return items[at] if name == "choice" else [items[one] for one in at]
            given = {str(at): one for at, one in enumerate(args)} | kwargs
            return stage.trace.draw(
                source, name, None, lambda: basic[name](own(self), *args, **kwargs), given, followed=False
            )

        return method

    followers = {
        "random": draws_uniform,
        "uniform": uniform,
        "gauss": gauss,
        "normalvariate": gauss,
        "expovariate": expovariate,
        "seed": seed,
    }
    methods = {name: plain(name) for name in PLAIN.split()} | followers
    instance = random._inst  # pyright: ignore[reportAttributeAccessIssue]
    for name, method in methods.items():
        put(random, name, method.__get__(instance))
        put(random.SystemRandom, name, method)
    put(random, "getstate", lambda: basic["getstate"](shared))
    put(random, "setstate", lambda state: basic["setstate"](shared, state))

    class Random(real):
        def __init__(self, x: Any = None) -> None:
            if x is not None:
                stage.trace.seeds.append(Seed("random.Random", repr(x), caller()))
            real.__init__(self, fresh_seed(stage.trace) if x is None else x)

        def seed(self, a: Any = None, version: int = 2) -> None:
            if id(self) in twins:
                seed(self, a, version)
            else:
                basic["seed"](self, a, version)

        def getstate(self) -> Any:
            return basic["getstate"](own(self) if id(self) in twins else self)

        def setstate(self, state: Any) -> None:
            basic["setstate"](own(self) if id(self) in twins else self, state)

    for name, method in methods.items():
        if name != "seed":
            setattr(Random, name, method)
    put(random, "Random", Random)
    stage.random_class = Random

    def urandom(size: int) -> bytes:
        return stage.trace.draw("os.urandom", "bytes", (size,), lambda: stage.trace.random.bytes(size), followed=False)

    put(os, "urandom", urandom)
    put(random, "_urandom", urandom)
