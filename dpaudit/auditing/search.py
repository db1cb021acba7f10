"""Searches for the worst pair of inputs and the best rejection region for it, then certifies both on fresh trials."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit._engine import programs
from dpaudit._engine.game import of_trials, play, trial_key
from dpaudit.auditing.attacks import distinguish
from dpaudit.auditing.attacks.base import Distinguisher, Score
from dpaudit.auditing.attacks.choose import Rule, choose_rule
from dpaudit.auditing.audit import audit
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors
from dpaudit.auditing.domain import Domain, Pair
from dpaudit.auditing.domain import checked as checked_domain
from dpaudit.auditing.lint import probe
from dpaudit.auditing.result import AuditResult, checked_delta
from dpaudit.auditing.search_pairs import Look, ascent, challengers, look, take
from dpaudit.mechanisms.claim import Claim, Mechanism

LAST_LOOKS = 8  # looks at each member of the last population


class SearchResult(NamedTuple):
    """What a search found.

    Attributes:
      x0, x1: the pair.
      result: the audit of that pair and region, on trials that the search has not used.
      distinguisher: the region, for further audits of the pair: a fitted score and a fixed threshold.
      history: [steps], the epsilon that the search estimated at each step; not a bound, because the pairs were
        selected by it.
      by_gradient: whether derivatives of the mechanism were used besides evolution.
      trials: played by the search, both worlds together; those of the certification are ``result.trials``.
    """

    x0: Any
    x1: Any
    result: AuditResult
    distinguisher: Distinguisher
    history: np.ndarray
    by_gradient: bool
    trials: int


def search(
    mechanism: Mechanism | Callable[[jax.Array, Any], Any],
    domain: Domain,
    *,
    key: jax.Array,
    trials: int = 10_000,
    claim: Claim | None = None,
    distinguishers: Sequence[Distinguisher] | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    until: sequential.Until | None = None,
    starts: int = 32,
    steps: int = 50,
    look_trials: int = 1000,
) -> SearchResult:
    """Looks for the pair of neighbours that can be told apart best, and audits it.

    A population of random pairs evolves. Each member is compared with a move toward the best members, a random move
    and, if the mechanism has derivatives, a move along the gradient; the best of them in a short game with the same
    randomness is kept. (Gradients are used if some random pair has a nonzero one: the Gaussian mechanism's release
    moves with its input, while Laplace's jumps on its grid and LDP-SGD's from side to side.) Then the region is
    chosen: a threshold for each distinguisher, and the distinguisher with the largest bound on further trials.

    The pair and the region are fixed before the first trial of the audit, which draws from a separate key. So its
    bounds hold as if both had been known, however long the search was. A search that finds nothing proves nothing.

    Args:
      mechanism: as for :func:`dpaudit.audit`; a mechanism of NumPy cannot be searched.
      domain: which pairs are neighbours, see :mod:`dpaudit.auditing.domain`.
      key: a jax.random key, consumed.
      trials: of the audit, both worlds together; as many again choose the region.
      claim, delta, confidence, until: as for :func:`dpaudit.audit`.
      distinguishers: attacks to choose from. None takes the likelihood ratio if there is a density, the moments of the
        releases and, if releases have their input's size, the projection. One that cannot be fitted in a
        compiled program, such as ``distinguish.learned``, is used only after the pair is found.
      starts: random pairs to start from, the population.
      steps: of the search.
      look_trials: of one short game of one pair, both worlds together. Events rarer than about one in a hundred of
        them cannot guide the search.

    Returns:
      A :class:`SearchResult`.

    Raises:
      InputError: a value out of range, a domain that gives no pairs, and whatever :func:`dpaudit.audit` refuses.
    """
    starts, steps = _validate.at_least(1, starts=starts), _validate.at_least(1, steps=steps)
    half, look_half = _validate.at_least(8, trials=trials) // 2, _validate.at_least(2, look_trials=look_trials) // 2
    _validate.open_unit(confidence=confidence)
    search_key, region_key, audit_key = jax.random.split(_validate.key(key=key), 3)
    if not isinstance(mechanism, Mechanism):
        if not callable(mechanism):
            raise _validate.expected("mechanism", "a Mechanism or a function of (key, x)", mechanism)
        mechanism = Mechanism(mechanism)
    claim = mechanism.claim if claim is None else claim
    if not isinstance(claim, Claim | None):
        raise _validate.expected("claim", "a Claim or None", claim)
    delta = checked_delta(delta, claim)
    example = programs.shared(checked_domain(domain=domain).draw)(search_key)
    _takes_any_input(mechanism, example)
    probe.examine(mechanism, *example)
    attacks = _default(mechanism, example) if distinguishers is None else list(distinguishers)
    for attack in attacks:
        if not isinstance(attack, Distinguisher):
            raise _validate.expected("distinguishers", "Distinguishers", attack)
    quick = [attack for attack in attacks if _fits_compiled(attack, mechanism, example)]
    if not quick:
        names = ", ".join(attack.name for attack in attacks)
        raise _validate.expected("distinguishers", "one that can be fitted in a compiled program", names)

    with probe.failures_named(mechanism):
        pair, history, by_gradient, games = _worst_pair(
            search_key, mechanism, domain, quick, delta=delta, starts=starts, steps=steps, trials=look_half
        )
        settings: dict[str, Any] = {"delta": delta, "confidence": confidence}
        region = _best_region(region_key, mechanism, pair, attacks, half, **settings)
    played = 2 * (games + half)
    region = region._replace(name=f"{region.name}, pair and region searched on {played:,} separate trials")
    settings |= {"trials": trials, "claim": claim, "distinguisher": region, "until": until}
    result = audit(mechanism, *pair, key=audit_key, **settings)
    return SearchResult(*pair, result, region, history, by_gradient, played)


def _worst_pair(
    key: jax.Array,
    mechanism: Mechanism,
    domain: Domain,
    distinguishers: Sequence[Distinguisher],
    *,
    delta: float,
    starts: int,
    steps: int,
    trials: int,
) -> tuple[Pair, np.ndarray, bool, int]:
    """Searches for a pair; returns (pair, history, by_gradient, games played in each world)."""
    setting: dict[str, Any] = {"mechanism": mechanism, "distinguishers": distinguishers, "trials": trials}

    @programs.shared
    def keys_of_step(key: jax.Array, step: jax.Array) -> list[jax.Array]:
        return list(jax.random.split(jax.random.split(key, steps)[step], 3))

    @programs.shared
    def draw(key: jax.Array) -> Pair:
        return jax.vmap(domain.draw)(jax.random.split(key, starts))

    @programs.shared
    def judge(key: jax.Array, pairs: Pair) -> Look:
        return jax.lax.map(lambda pair: look(key, pair, delta=delta, **setting), pairs)

    @programs.shared
    def slopes(key: jax.Array, pairs: Pair) -> Pair:
        return jax.lax.map(lambda pair: ascent(key, pair, **setting), pairs)

    @programs.shared
    def rivals(key: jax.Array, members: Pair, fresh: Pair, values: jax.Array, slopes: Pair | None) -> list[Pair]:
        ranked, keys, numbers = jnp.argsort(-values), jax.random.split(key, starts), jnp.arange(starts)
        one = partial(challengers, domain=domain, members=members, fresh=fresh, ranked=ranked)
        return jax.vmap(lambda key, i, slope: one(key, i=i, slope=slope))(keys, numbers, slopes)

    @programs.shared
    def survivors(pairs: list[Pair], looks: list[Look]) -> tuple[Pair, jax.Array, jax.Array]:
        values = jnp.stack([seen.value for seen in looks])
        winner, numbers = jnp.argmax(values, axis=0), jnp.arange(starts)
        members = jax.tree.map(lambda *leaves: jnp.stack(leaves)[winner, numbers], *pairs)
        bounds = jnp.stack([seen.bound for seen in looks])
        return members, values.max(axis=0), bounds.reshape(-1)[jnp.argmax(values)]

    @programs.shared
    def best(members: Pair, looks: list[Look]) -> Pair:
        return take(members, jnp.argmax(sum(seen.value for seen in looks)))

    start_key, steps_key, last_key = jax.random.split(trial_key(key), 3)
    members, values, history = draw(start_key), jnp.zeros(starts), []
    by_gradient = _has_slope(slopes, start_key, members)
    for step in range(steps):
        look_key, fresh_key, move_key = keys_of_step(steps_key, step)
        uphill = slopes(look_key, members) if by_gradient else None
        pairs = [members, *rivals(move_key, members, draw(fresh_key), values, uphill)]
        members, values, bound = survivors(pairs, [judge(look_key, rival) for rival in pairs])
        history.append(bound)
    looks = [judge(key, members) for key in jax.random.split(last_key, LAST_LOOKS)]
    kinds = 4 if by_gradient else 3
    games = starts * trials * (steps * kinds + LAST_LOOKS)
    return best(members, looks), np.asarray(history), by_gradient, games


def _has_slope(slopes: Callable[[jax.Array, Pair], Pair], key: jax.Array, pairs: Pair) -> bool:
    """Tells whether the mechanism can be differentiated and the derivative is not zero for some pair."""
    try:
        found = slopes(key, pairs)
    except (TypeError, ValueError, NotImplementedError):  # JAX's: a loop of unknown length, a call to Python, no rule
        return False
    return any(np.any(leaf) for leaf in jax.tree.leaves(found))


def _best_region(
    key: jax.Array,
    mechanism: Mechanism,
    pair: Pair,
    distinguishers: Sequence[Distinguisher],
    half: int,
    *,
    delta: float,
    confidence: float,
) -> Distinguisher:
    """Returns the distinguisher, fitted and with a fixed threshold, whose bound is largest on ``half`` trials."""
    fit_key, play_key = jax.random.split(key)
    fits = [attack.fit(jax.random.fold_in(fit_key, i), mechanism, *pair) for i, attack in enumerate(distinguishers)]

    def scores_of(release: Any) -> jax.Array:
        return jnp.stack([score(release) for score in fits])

    scores = play(play_key, lambda key, world: mechanism.apply(key, pair[world]), scores_of, half)
    found = []
    for i, (attack, score) in enumerate(zip(distinguishers, fits, strict=True)):
        own, threshold = scores[..., i].astype(np.float64), attack.threshold
        if threshold is None:
            rule = choose_rule(own[:, : half // 2], delta=delta, confidence=confidence)
        else:
            rule = Rule(threshold)
        rest = own[:, half // 2 :]
        counts = (*errors(rest, *rule), rest.shape[1], rest.shape[1])
        bound, _ = epsilon_bounds(*counts, delta=delta, confidence=confidence, both_events=True)
        found.append((float(bound), Distinguisher(_ready(score), rule.threshold, attack.name)))
    return max(found, key=lambda region: region[0])[1]


def _takes_any_input(mechanism: Mechanism, pair: Pair) -> None:
    """Refuses a mechanism that can be compiled for one input only, as all those on the host."""
    try:
        jax.eval_shape(mechanism.apply, of_trials(), pair[0])
    except probe.NOT_JITTABLE as error:
        name, cause = probe.name_of(mechanism.apply), type(error).__name__
        wanted = "a function that jax.jit can trace with its input as an argument"
        raise _validate.InputError(
            f"mechanism: expected {wanted}, got {name}, which needs its value ({cause})"
        ) from None
    except Exception:
        return  # probe.examine names any other fault


def _ready(score: Score) -> Callable[..., Score]:
    """Returns a fit that gives a score fitted already."""
    return lambda key, mechanism, x0, x1: score


def _default(mechanism: Mechanism, pair: Pair) -> list[Distinguisher]:
    release = jax.eval_shape(mechanism.apply, of_trials(), pair[0])
    sizes = {sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (release, *pair)}
    attacks = [] if mechanism.log_prob is None else [distinguish.likelihood_ratio]
    return [*attacks, distinguish.moments, *([distinguish.projection] if len(sizes) == 1 else [])]


def _fits_compiled(attack: Distinguisher, mechanism: Mechanism, pair: Pair) -> bool:
    """Tells whether the attack can be fitted to a pair whose values are traced."""

    def score(key: jax.Array, pair: Pair) -> jax.Array:
        return attack.fit(key, mechanism, *pair)(mechanism.apply(key, pair[0]))

    try:
        jax.eval_shape(score, of_trials(), pair)
    except probe.NOT_JITTABLE:
        return False
    return True
