"""Audits a mechanism, or a protocol of the trust boundary, in one call: :func:`dpaudit.audit`.

    dpaudit.audit(mechanism, x0, x1, key=key)
    dpaudit.audit(protocol, users, canary, key=key, state=weights, rounds=20)

What a protocol is turned into is in :mod:`dpaudit.audits.protocol_audit`.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
from jax.sharding import Mesh

from dpaudit import _validate
from dpaudit.auditing import audit as pairs
from dpaudit.auditing.attacks.base import Distinguisher
from dpaudit.auditing.bounds.sequential import Until
from dpaudit.auditing.estimators import Estimator
from dpaudit.auditing.result import AuditResult
from dpaudit.mechanisms.claim import Claim, Mechanism

if TYPE_CHECKING:
    from dpaudit.personalization.boundary.protocol import Protocol


def audit(
    mechanism: "Mechanism | Callable[[jax.Array, Any], Any] | Protocol",
    x0: Any,
    x1: Any,
    *,
    key: jax.Array,
    trials: int = 10_000,
    claim: Claim | None = None,
    distinguisher: Distinguisher | None = None,
    attacks: Sequence[Distinguisher] = (),
    delta: float | None = None,
    confidence: float = 0.95,
    until: Until | None = None,
    estimator: Estimator | None = None,
    alternative: "Mechanism | Callable[[jax.Array, Any], Any] | Protocol | None" = None,
    reading: str | None = None,
    batch: int | None = None,
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
    state: Any = None,
    rounds: int | None = None,
    memory: Any = None,
) -> AuditResult:
    """Measures how well the releases of two inputs can be told apart, and bounds the mechanism's epsilon from below.

    Of a protocol of the trust boundary it measures how well a reader of the whole transcript can tell whether one
    user, the canary, takes part beside the others.

    Args:
      mechanism: a :class:`Mechanism`; any jittable ``fn(key, x) -> release`` with arrays or pytrees on both sides; a
        :class:`dpaudit.personalization.Protocol`. A function of NumPy is wrapped in :func:`dpaudit.on_host`.
      x0, x1: the two inputs; neighbours in the sense of the claim. Of a protocol, the other users, a pytree with a
        leading axis of users or a tuple of such buckets, and the canary: a user like them, with a leading axis of 1;
        or the domain of one user, without that axis, such as :func:`dpaudit.domain.box` or a dictionary of them by
        name, in which :func:`dpaudit.audits.worst_user` searches. The result names the user found.
      key: a jax.random key, consumed.
      trials: K of Algorithm 3: the total, half of it in each world (an odd one is not played).
      claim: the promise; defaults to the mechanism's own, which for a protocol is the curve of its transcript's
        accounting.
      distinguisher: a single attack to use. None runs a family of attacks on the same releases and chooses one on the
        trials set aside (see :mod:`dpaudit.auditing.attacks.portfolio`), at no cost in confidence. With fewer than
        256 trials: the likelihood ratio if the mechanism has a density, else the projection on x1 - x0.
      attacks: your own attacks, in addition to the family; not with a distinguisher.
      delta: of every epsilon; defaults to the claim's, else 0.
      confidence: of each bound.
      until: when to stop before all ``trials`` are played: ``sequential.violation()``, ``sequential.width(0.2)`` or a
        rule of your own. All bounds then hold at all times together. None runs all trials.
      estimator: how the bounds are computed (:mod:`dpaudit.estimators`): Clopper-Pearson by default, betting with
        ``until``. A band sets no trials aside if a distinguisher is named, takes larger scores to mean x1, and works
        neither with ``until`` nor with a curve. Estimators with a caveat are for audits without a claim.
      alternative: a worse mechanism, for example the same one with 0.8 of the noise: ``power`` is then the probability
        that this audit would have called it a violation, and ``detectable`` is extrapolated from it. It is attacked
        in the same way on separate trials, which are not counted; needs a claim.
      reading: "gaussian" adds to the result the epsilon that follows if the trade-off curve is Gaussian, from the most
        accurate rule; no verdict rests on it. For Gaussian noise, trials can hardly test a claim of one (epsilon,
        delta) with a tiny delta; prefer a claim that is the accountant's curve.
      batch: trials of each world sent to each device at a time, rounded up to whole blocks. The result depends
        neither on it nor on the mesh or an interruption.
      mesh: a device mesh, possibly of several processes (``jax.distributed``), over which the trials are split: each
        process makes the same call and gets the same result. None for one device.
      checkpoint: a file that stores the counts after each call to the devices, from which the same audit resumes, on
        any devices. A file of another audit is refused, except that your own rule for ``until`` is compared only by
        its name. Of several processes, the first one writes the file. With a family of attacks, ``FILE.pilot`` beside
        it stores the releases that they were fitted on.
      progress: called with the number of trials played so far, of both worlds, first with those of the checkpoint.
      state: the server's state before a protocol's first round.
      rounds: of a run of a protocol, >= 1.
      memory: of a protocol's aggregator; None for one made by :func:`dpaudit.personalization.private`.

    Returns:
      An :class:`AuditResult`. If the threshold is chosen, a quarter of the trials is used for that and not counted.
      With ``until``, no more are used than it takes to estimate error rates as small as the claim's, and the threshold
      is chosen again as trials accumulate (:func:`dpaudit.auditing.bounds.sequential.next_stage`); against a curve, so
      are the side of a fixed threshold and the bet.

    Raises:
      InputError: a value out of range, an estimator or an alternative that does not fit, a release that is not a
        number, a checkpoint that is damaged or belongs to another audit, and what :func:`probe.examine` refuses: a
        mechanism that raises, cannot be traced, ignores its key or gives x0 and x1 releases of different shape. Of a
        protocol: no users, a canary of another shape, a function with effects, noise that is drawn twice.

    Source: paper 000, Algorithm 3.
    """
    settings: dict[str, Any] = {"trials": trials, "claim": claim, "distinguisher": distinguisher, "attacks": attacks}
    settings |= {"delta": delta, "confidence": confidence, "until": until, "estimator": estimator, "reading": reading}
    settings |= {"batch": batch, "mesh": mesh, "checkpoint": checkpoint, "progress": progress}
    run: dict[str, Any] = {"state": state, "rounds": rounds, "memory": memory}
    pair: Any = (mechanism, x0, x1)
    other: Any = alternative
    if not _is_protocol(mechanism):
        for name, value in run.items():
            if value is not None:
                raise _validate.expected(name, "None, except for a dpaudit.personalization.Protocol", value)
        return pairs.audit(*pair, key=key, alternative=other, **settings)
    from dpaudit.audits import protocol_audit, user_search

    _validate.at_least(2, trials=trials)
    key, canary = _validate.key(key=key), x1
    if user_search.is_domain(x1):
        search_key, key = jax.random.split(key)
        canary = user_search.worst_user(search_key, mechanism, users=x0, anybody=x1, **run)
    hidden = partial(protocol_audit.of_protocol, users=x0, canary=canary, **run)
    pair = (hidden(mechanism), protocol_audit.ABSENT, protocol_audit.PRESENT)
    result = pairs.audit(*pair, key=key, alternative=hidden(other) if _is_protocol(other) else other, **settings)
    if canary is x1:
        return result
    return dataclasses.replace(result, canary=jax.tree.map(lambda leaf: leaf[0].tolist(), canary))


def _is_protocol(mechanism: Any) -> "TypeGuard[Protocol]":
    """Tells whether this is a protocol; a function is not, and needs nothing of personalization to be imported."""
    if mechanism is None or isinstance(mechanism, Mechanism) or callable(mechanism):
        return False
    from dpaudit.personalization.boundary.protocol import Protocol

    return isinstance(mechanism, Protocol)
