"""Makes releases, the values that may leave the boundary, by processes that account all their releases together.

    gramians = gaussian("gramians", noise_multiplier=4.0)
    memory = gramians.init(total)
    release, memory = gramians.release(key, total, memory, sensitivity=1.0)

Neighbours are data sets that differ by one user, added or removed; for :func:`correlated` noise, by one user whose
contribution is replaced by zero ("zero_out").

Noise is a function of the key, the process's name and the release's number, so processes with the same key, and a run
that continues with its old key, draw different noise. A process that starts again with the same key would draw the
same noise again. Every release therefore carries a fingerprint of its draw, and the transcript refuses repeated ones.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent

from dpaudit import _validate
from dpaudit.mechanisms.clipping import wide
from dpaudit.training import dp_ftrl
from dpaudit.training.dp_sgd import Noise, add_noise
from dpaudit.training.sampling import participation

if TYPE_CHECKING:
    from dpaudit.training.matrix_noise import Strategy

DRAW_WORDS = 4  # words of a fingerprint; two different draws share one with probability 2^-128


@jax.tree_util.register_static
class Mark(str):
    """Text in a pytree, which no compiled program sees."""


class Memory(NamedTuple):
    """The memory of a process between releases, to be kept as secret as the key.

    Attributes:
      number: the number of the next release, from 0, int32.
      noise: the state that later noise depends on.
      process: static, equal for processes that account alike: of the one that made all releases, or () if not known.
      first: static, names the run of a ledger that made the first release, or () if not known.
    """

    number: jax.Array
    noise: Any
    process: Any = ()
    first: Any = ()


def memories(memory: Any) -> list[Memory]:
    """Lists the memories of all processes in the memory of an aggregator, in order."""
    leaves = jax.tree.leaves(memory, is_leaf=lambda leaf: isinstance(leaf, Memory))
    return [leaf for leaf in leaves if isinstance(leaf, Memory)]


def memoryless() -> Memory:
    """Returns the memory before the first release of any process with independent noise: just a number."""
    return Memory(jnp.int32(0), ())


class Process(NamedTuple):
    """A stream of releases that are accounted together.

    Attributes:
      name: of what it releases; a round releases each name once.
      event: ``event(n) -> DpEvent`` of its first n >= 1 releases together.
      noise: ``noise(sensitivity) -> Noise`` (:class:`dpaudit.training.dp_sgd.Noise`) for totals that one user moves by
        at most ``sensitivity``, in the norm that ``event`` is about.
    """

    name: str
    event: Callable[[int], DpEvent]
    noise: Callable[[Any], Noise]

    def init(self, total: Any) -> Memory:
        """Returns the memory before the first release of a pytree like ``total``."""
        return Memory(jnp.int32(0), self.noise(1.0).init(total))

    def release(self, key: jax.Array, total: Any, memory: Memory, *, sensitivity: Any) -> tuple["Release", Memory]:
        """Adds this process's noise to ``total``: the only way to make a :class:`Release`.

        Args:
          key: JAX random key; the noise is a function of it, of ``name`` and of the release's number.
          total: pytree of arrays, the sum over devices.
          memory: of :meth:`init`, or of the release before.
          sensitivity: how far one user moves ``total`` at most (L2 norm of all leaves together where the noise is
            Gaussian), > 0; may be traced.

        Returns:
          (release, memory).

        Raises:
          InputError: sensitivity out of range.
        """
        sensitivity = _validate.positive(sensitivity=sensitivity)
        noise_key, draw_key = jax.random.split(jax.random.fold_in(named(key, self.name), memory.number))
        noisy, noise = self.noise(sensitivity).add(noise_key, total, memory.noise)
        draw = jax.random.bits(draw_key, (DRAW_WORDS,), jnp.uint32)
        return _made(self, noisy, memory.number, draw), memory._replace(number=memory.number + 1, noise=noise)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False, init=False)
class Release:
    """A value with a process's noise. A pytree: ``process`` and ``fresh`` are static, the other fields leaves.

    Attributes:
      process: that made it.
      value: pytree of arrays; in a transcript with a leading axis of rounds.
      number: its number among the releases of its process, from 0, int32.
      draw: fingerprint of its noise, uint32 [4]; two are equal only if key, name and number are.
      fresh: whether it is unchanged since its process made it. After a compiled function, ``jax.vmap`` or
        ``jax.tree.map`` it is not, because its contents may have changed.
    """

    process: Process
    value: Any
    number: Any
    draw: Any
    fresh: bool = field(default=False, repr=False)

    def __init__(self, *_: Any, **__: Any):
        raise _validate.expected("Release", "Process.release to make it", "a call of the class")

    def tree_flatten(self) -> tuple[tuple[Any, Any, Any], Process]:
        return (self.value, self.number, self.draw), self.process

    @classmethod
    def tree_unflatten(cls, process: Process, leaves: tuple[Any, Any, Any]) -> "Release":
        return _made(process, *leaves, fresh=False)


def gaussian(name: str, *, noise_multiplier: float) -> Process:
    """Makes a process that releases total + sensitivity noise_multiplier N(0, I), independently each time.

    Args:
      name: of the process.
      noise_multiplier: standard deviation of the noise over the sensitivity, >= 0; 0 for the total as it is, which
        is accounted as no privacy at all.

    Returns:
      A :class:`Process`; n releases are one Gaussian with mu = sqrt(n)/noise_multiplier.

    Raises:
      InputError: noise_multiplier out of range.
    """
    multiplier = float(_validate.non_negative(noise_multiplier=noise_multiplier))
    one = dp_accounting.GaussianDpEvent(multiplier) if multiplier else dp_accounting.NonPrivateDpEvent()

    def event(n: int) -> DpEvent:
        return dp_accounting.SelfComposedDpEvent(one, n)

    process = Process(name, event, _independent(multiplier))
    _SHIPPED[event] = process.noise
    return process


def shipped(process: Any) -> bool:
    """Tells whether a process is as :func:`gaussian` made it, with neither event nor noise replaced."""
    return type(process) is Process and _SHIPPED.get(process.event) is process.noise


_SHIPPED: WeakKeyDictionary[Callable[[int], DpEvent], Callable[[Any], Noise]] = WeakKeyDictionary()


def poisson_gaussian(name: str, *, rate: float, noise_multiplier: float) -> Process:
    """Makes a process like :func:`gaussian`, where a user adds to a total with probability ``rate``, in secret.

    Args:
      name: of the process.
      rate: in (0, 1].
      noise_multiplier: standard deviation of the noise over the sensitivity, > 0.

    Returns:
      A :class:`Process`. The protocol has to make sure that users take part at random.

    Raises:
      InputError: a value out of range.
    """
    if _validate.probability(rate=rate, one_allowed=True) == 0:
        raise _validate.expected("rate", "a number in (0, 1]", rate)
    multiplier = float(_validate.positive(noise_multiplier=noise_multiplier))
    one = dp_accounting.PoissonSampledDpEvent(float(rate), dp_accounting.GaussianDpEvent(multiplier))
    return Process(name, lambda n: dp_accounting.SelfComposedDpEvent(one, n), _independent(multiplier))


def correlated(name: str, strategy: "Strategy", noise_multiplier: float) -> Process:
    """Makes the process of DP-FTRL: round t releases total_t + sensitivity noise_multiplier sens(C) (C^-1 z)_t.

    ``sensitivity`` is that of one total and the same in every round. All releases together are C x + noise, one
    Gaussian with mu = sens(C's first n rows)/(noise_multiplier sens(C)), exactly.

    Args:
      name: of the process.
      strategy: C and the participation it is made for, which the protocol has to keep to. A release past its last
        round is NaN, and has no event.
      noise_multiplier: over the sensitivity of all rounds together, > 0.

    Returns:
      A :class:`Process`.

    Raises:
      InputError: noise_multiplier out of range.

    Source: Denisov et al. 2022.
    """
    multiplier = float(_validate.positive(noise_multiplier=noise_multiplier))
    rounds, separation, most = strategy.pattern
    whole = strategy.sensitivity(strategy.pattern)

    def event(n: int) -> DpEvent:
        if n > rounds:
            raise _validate.expected(name, f"at most the {rounds} releases of its strategy", n)
        first = strategy.sensitivity(participation(n, separation=separation, most=most))
        return dp_accounting.GaussianDpEvent(multiplier * whole / first)

    return Process(name, event, lambda sensitivity: dp_ftrl.correlated(strategy, sensitivity * multiplier * whole))


def _independent(multiplier: float) -> Callable[[Any], Noise]:
    def noise(sensitivity: Any) -> Noise:
        if multiplier == 0:  # nothing is drawn, and nothing has to be compiled that draws
            return Noise(lambda total: (), lambda key, total, _: (wide(total), ()))
        return Noise(lambda total: (), lambda key, total, _: (add_noise(key, total, sensitivity * multiplier), ()))

    return noise


def named(key: jax.Array, name: str) -> jax.Array:
    """Derives the key for a name; two names share one with probability 2^-128."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], "<u4")
    for word in words:
        key = jax.random.fold_in(key, word)
    return key


def _made(process: Process, value: Any, number: Any, draw: Any, *, fresh: bool = True) -> Release:
    made = object.__new__(Release)
    contents = {"process": process, "value": value, "number": number, "draw": draw, "fresh": fresh}
    for name, content in contents.items():
        object.__setattr__(made, name, content)
    return made
