"""Audits any protocol of the trust boundary: can a reader of the whole transcript tell whether one user took part?

    devices = each(everything, gradient, clip_norm=1.0)
    steps = private(devices, gaussian("gradient", noise_multiplier=4.0), update=update)
    dpaudit.audit(steps, users, canary, key=key, state=weights, rounds=20, trials=20_000)

Users are any pytree with a leading axis; the canary is one of them, or a worst case made by hand. The release is the
whole transcript. If the boundary itself clips messages and adds the noise
(:func:`dpaudit.personalization.boundary.protocol.private`) and devices draw no randomness, the likelihood ratio of the
transcript is known too: the adversary recomputes the server's state, every total s_t of the others and the canary's
message Delta_t, both in standard deviations of the noise, and computes

    sum_t <y_t - s_t, Delta_t> - |Delta_t|^2/2

from the releases y_t (Neyman and Pearson). For other protocols the claim is the accounting of the protocol's author,
and the attacks of :func:`dpaudit.audit` read the transcript's numbers and, where devices draw no randomness, what is
left of them without the others' part: the release minus one that the aggregator makes of s_t with a fixed key. If
noise is added, that is Delta_t and the noise, up to a constant, so its changes from round to round show noise that is
used again.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr

from dpaudit import _validate
from dpaudit.auditing.lint import probe
from dpaudit.audits.training_canary import ABSENT, PRESENT
from dpaudit.audits.transcript_audit import Seen
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.clipping import wide
from dpaudit.personalization.boundary.aggregator import enforced, run
from dpaudit.personalization.boundary.bounds import Noised
from dpaudit.personalization.boundary.budget import mu_squared
from dpaudit.personalization.boundary.protocol import Protocol
from dpaudit.personalization.boundary.transcript import Transcript, without_values

BITS = 10
ROUNDING = 1e-5  # of a total's largest number, by which the order of its sum may change it
NAME = "protocol"  # in messages about its run

__all__ = ["ABSENT", "PRESENT", "Told", "of_protocol"]


class Told(NamedTuple):
    """The releases of a run.

    Attributes:
      values: all released values by the name of their process, with a leading axis of rounds.
      seen: what they reveal about the canary in each round: a :class:`dpaudit.audits.transcript_audit.Seen`, in
        standard deviations; for protocols of other authors, what is left of each release without the others' part,
        and its changes; () where devices draw randomness. All numbers beside such rests are rounded to ``BITS`` bits:
        the last bits of float32 noise tell more than noise of real numbers would (Mironov 2012).
    """

    values: dict[str, Any]
    seen: Any


class _Devices(NamedTuple):
    """The devices of everybody, or of all but the canary: ``users`` is (whether it is present, everybody, the
    others)."""

    devices: Callable[[jax.Array, Any, Any], Any]

    def __call__(self, key: jax.Array, model: Any, users: Any) -> Any:
        present, *both = users
        return jax.lax.cond(present > 0, *(lambda who=who: self.devices(key, model, who) for who in both))


def of_protocol(
    protocol: Protocol,
    state: Any,
    users: Any,
    canary: Any,
    *,
    rounds: int,
    memory: Any = None,
    delta: float | None = None,
) -> Mechanism:
    """Makes a run of a protocol a mechanism of "is the canary there?", for an adversary who reads its transcript.

    Args:
      protocol: one round.
      state: the server's initial state.
      users: the others, a pytree with a leading axis of users, or a tuple of such buckets if ``protocol.devices``
        takes one.
      canary: the additional user: the same pytree with a leading axis of 1 (a bucket of one if users are a tuple).
      rounds: >= 1.
      memory: of the aggregator; None for the first run of a protocol made by ``private``.
      delta: in (0, 1), of the claim; None claims the whole accounted curve, against which fewer trials suffice to
        show a fault.

    Returns:
      A :class:`dpaudit.Mechanism` for the inputs ``ABSENT`` and ``PRESENT`` that releases :class:`Told`, with the
      accounting of the transcript as its claim ("add_remove"), and with ``log_prob`` if it is known.

    Raises:
      InputError: no users; a canary of another shape, or one who moves nothing in a run, as one with a NaN; a function
        that JAX cannot trace or that has effects; a run whose accounted epsilon is infinite.
    """
    _validate.at_least(1, rounds=rounds)
    everybody = joined(users, canary)
    memory = begun(protocol, memory)
    watched = protocol._replace(devices=_Devices(protocol.devices))

    def played(key: jax.Array, present: Any) -> Any:
        return run(key, watched, state, memory, (present, everybody, users), rounds)[2]

    probe.once(Mechanism(played), NAME, 1, PRESENT, jax_alone=True)
    read = None
    if not _drawing(protocol, state, users):
        _refuse_still(protocol, state, users, canary, everybody, lambda: played(jax.random.key(0), PRESENT))
        known = enforced(protocol)
        read = _likely(protocol, users, alone(users, canary)) if known else _left(protocol, users, memory)

    def apply(key: jax.Array, present: Any) -> Told:
        transcript = played(key, present)
        names = [release.process.name for release in transcript.parts[0]]
        values = {name: transcript.values(name) for name in names}
        seen = () if read is None else jax.lax.scan(read, state, transcript.parts[0])[1]
        if read is None or isinstance(seen, Seen):
            return Told(values, seen)
        changes = jax.tree.map(lambda leaf: jnp.diff(leaf, axis=0), seen)
        return jax.tree.map(_rounded, Told(values, (seen, changes)))

    def log_prob(told: Told, present: Any) -> jax.Array:
        return -0.5 * jnp.sum((told.seen.along - present * told.seen.reach) ** 2)

    apply.__name__ = NAME
    accounted = without_values(lambda key: played(key, PRESENT), jax.random.key(0))
    claim = accounted.claim() if delta is None else Claim(accounted.epsilon(delta), delta, "add_remove")
    return Mechanism(apply, claim, log_prob if read is not None and enforced(protocol) else None)


def _rounded(leaf: jax.Array) -> jax.Array:
    real = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.lax.reduce_precision(leaf, exponent_bits=8, mantissa_bits=BITS) if real else leaf


def _drawing(protocol: Protocol, state: Any, users: Any) -> bool:
    """Tells whether devices add randomness of their own, so that nobody else knows what they sent."""
    model = jax.eval_shape(protocol.broadcast, state)
    program = jax.make_jaxpr(protocol.devices)(jax.random.key(0), model, users)
    return dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))[1][0]


def _refuse_still(
    protocol: Protocol, state: Any, users: Any, canary: Any, everybody: Any, play: Callable[[], Transcript]
) -> None:
    """Refuses a canary who moves the total of no round: the worlds would be the same, and any protocol consistent.

    Args:
      play: plays a run, whose later models are looked at if the canary does not move the first total.
    """

    @jax.jit
    def moves(state: Any) -> jax.Array:
        model = protocol.broadcast(state)
        own, whole, others = (
            jax.tree.map(wide, protocol.devices(jax.random.key(0), model, who))
            for who in (alone(users, canary), everybody, users)
        )
        apart = jax.tree.map(
            lambda a, b: jnp.any(jnp.abs(a - b) > ROUNDING * jnp.max(jnp.abs(b), initial=0)), whole, others
        )
        sends = jax.tree.map(jnp.any, own)
        return jnp.any(jnp.stack(jax.tree.leaves((sends, apart))))

    if moves(state):
        return

    def later(state: Any, releases: Any) -> tuple[Any, jax.Array]:
        return protocol.update(state, releases), moves(state)

    if not jax.lax.scan(later, state, play().parts[0])[1].any():
        raise _validate.expected("canary", "a user who moves a total", "one who adds zero in every round of a run")


def _left(protocol: Protocol, users: Any, memory: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Returns ``read(state, releases) -> (next state, what is left without the others' part)`` of one round."""
    key = jax.random.key(0)

    def read(state: Any, releases: Any) -> tuple[Any, Any]:
        others, _ = protocol.release(key, protocol.devices(key, protocol.broadcast(state), users), memory)
        left = [
            jax.tree.map(jnp.subtract, told.value, known.value) for told, known in zip(releases, others, strict=True)
        ]
        return protocol.update(state, releases), left

    return read


def _likely(protocol: Protocol, users: Any, canary: Any) -> Callable[[Any, Any], tuple[Any, Seen]]:
    """Returns ``read(state, releases) -> (next state, Seen)`` of a round of a protocol that the boundary enforces."""
    zero = jax.random.key(0)
    assert isinstance(protocol.release, Noised)
    names = protocol.release.add.names

    def read(state: Any, releases: Any) -> tuple[Any, Seen]:
        model = protocol.broadcast(state)
        others, moved = (scaled(protocol, protocol.devices(zero, model, who)) for who in (users, canary))
        told = [each.value for each in releases]
        noisy = scaled(protocol, dict(zip(names, told, strict=True)) if names else told[0])
        reach = jnp.linalg.norm(moved)
        along = (noisy - others) @ (moved / jnp.maximum(reach, jnp.finfo(reach.dtype).tiny))
        return protocol.update(state, releases), Seen(along, reach)

    return read


def scaled(protocol: Protocol, total: Any) -> jax.Array:
    """Returns the numbers of a total, or of what is released of it, [n], in standard deviations of their noise.

    Args:
      protocol: one that the boundary enforces.
      total: of its devices.
    """
    release, numbers = protocol.release, []
    assert isinstance(release, Noised)
    for process, (bound, part) in zip(release.processes, release.add.parts(total), strict=True):
        squared = mu_squared(process.event(1))
        assert squared, "a shipped process is Gaussian"
        numbers.append(ravel_pytree(part)[0] * (math.sqrt(squared) / bound.sensitivity(part)))
    return jnp.concatenate(numbers)


def alone(users: Any, canary: Any) -> Any:
    """Returns the canary as the users of a protocol: a bucket of one is a tuple if users are a tuple of buckets."""
    return (canary,) if _in_buckets(users) else canary


def joined(users: Any, canary: Any) -> Any:
    """Returns the others and the canary, in a pytree like ``users``.

    Raises:
      InputError: no users; a canary that is not one user like them.
    """
    buckets = users if _in_buckets(users) else (users,)
    rows = [{jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(each)} for each in buckets]
    if any(len(each) != 1 or () in each for each in rows) or all(each == {(0,)} for each in rows):
        shapes = jax.tree.map(lambda leaf: list(jnp.shape(leaf)), users)
        raise _validate.expected("users", "arrays with one leading axis, of at least one user", shapes)
    own, one = _kinds(buckets[0], buckets is users), _kinds(canary, buckets is users)
    if own != one or {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(canary)} != {(1,)}:
        shapes = jax.tree.map(lambda leaf: list(jnp.shape(leaf)), canary)
        raise _validate.expected("canary", f"one user, with a leading axis of 1 and leaves {own}", shapes)
    if buckets is users:
        return (*users, canary)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), users, canary)


def begun(protocol: Protocol, memory: Any) -> Any:
    """Returns the aggregator's memory before a run: for None, that of a protocol made by ``private``."""
    return protocol.release.init() if memory is None and isinstance(protocol.release, Noised) else memory


def _in_buckets(users: Any) -> bool:
    return isinstance(users, tuple) and not hasattr(users, "_fields") and len(users) > 0


def _kinds(users: Any, any_width: bool) -> Any:
    """Names the type of each array of a user, and its shape; of buckets, whose widths differ, how many axes it has."""
    axes = (lambda leaf: jnp.ndim(leaf) - 1) if any_width else (lambda leaf: list(jnp.shape(leaf)[1:]))
    return jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{axes(leaf)}", users)
