"""Repeats the black-box table of DP-Sniper: the mechanisms of its evaluation, audited with a learned distinguisher.

    python -m experiments.trust.dp_sniper                     # about eight minutes on two cores
    python -m experiments.trust.dp_sniper --quick --out DIR   # three mechanisms: under a minute

Expect half of the certified epsilons at or above the published ones, far above where the worst outcomes are rare (the
published search never looks at events less likely than 1%); what falls short, and by how much, stands below the table.

For each mechanism, on trials of their own: a linear rule and a small network are trained on every pair of inputs of
the published family and the two most promising pairs kept; both are trained on these with more releases, and the most
promising attack kept; the threshold is chosen; the bound is computed.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import AuditResult, Claim, audit, distinguish, play
from dpaudit._engine import hosts
from dpaudit.auditing.attacks import learned
from dpaudit.auditing.attacks.choose import choose_rule
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors
from dpaudit.auditing.result import json_number
from experiments.common import Rows, options
from experiments.trust import sniper_exact
from experiments.trust import sniper_mechanisms as sniper

CONFIDENCE = 0.95
SELECTING = 0.6  # confidence at which pairs and attacks are ranked: few trials must tell of what many would show
TRIALS = {"searching": 1 << 19, "fitting": 1 << 21, "final": 40_000_000}  # the first two: of each world and pair
QUICK_TRIALS = {"searching": 1 << 16, "fitting": 1 << 18, "final": 4_000_000}
LAYERS = (0, 2)  # of the attacks: a linear rule and a network
FINALISTS = 2  # pairs on which both are trained at length
QUICK = ("laplace", "report_noisy_max3", "one_time_rappor")


class Published(NamedTuple):
    """What DP-Sniper's authors published for a mechanism: bounds at confidence 0.9 from 200 million final samples of
    each world, of attacks that are kept to events of probability 0.01 or more.
    Source: repository eth-sri/dp-sniper, eval_sp2021/reference-results: dd_search_reg_data.log, dd_search_mlp_data.log
    and statdp_1_data.log; entries ``eps_lcb``, ``p1``, ``p2``, ``time_dd_search``, ``time_final_estimate_eps`` and
    ``statdp_result``.
    """

    linear: float  # certified epsilon of DP-Sniper with logistic regression
    network: float  # with a neural network
    seconds: list[float]  # wall time of both, search and final estimate, on the authors' machine
    rates: list[float]  # the two probabilities behind the larger of the two bounds
    statdp: float | None  # certified epsilon of StatDP-Fixed, first run; None where it failed


class Entry(NamedTuple):
    """A mechanism with the shape of its inputs."""

    apply: Callable[[jax.Array, jax.Array], jax.Array]  # ``fn(key, x)``
    size: int  # numbers in an input
    every: bool = False  # whether neighbours may differ by 1 in every number, not in one only


MAXIMA = (sniper.report_noisy_max1, sniper.report_noisy_max2, sniper.report_noisy_max3, sniper.report_noisy_max4)
SVTS = (sniper.svt1, sniper.svt2, sniper.svt3, sniper.svt4, sniper.svt5, sniper.svt6)
ENTRIES = (
    *(Entry(apply, 1) for apply in (sniper.laplace, sniper.truncated_geometric)),
    *(Entry(apply, 5) for apply in (sniper.noisy_hist1, sniper.noisy_hist2)),
    *(Entry(apply, 5, every=True) for apply in MAXIMA),
    *(Entry(apply, 10, every=True) for apply in SVTS),
    *(Entry(apply, 1) for apply in (sniper.rappor, sniper.one_time_rappor, sniper.laplace_parallel)),
    *(Entry(apply, 10, every=True) for apply in (sniper.svt34_parallel, sniper.prefix_sum, sniper.numerical_svt)),
)
PUBLISHED = {
    name: Published(**row)
    for name, row in json.loads(Path(__file__).with_name("sniper_published.json").read_text()).items()
}


def pairs(size: int, every: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The published family of neighbours (Ding et al., CCS 2018), each once: both directions count in a bound."""
    ones, half = np.ones(size), np.arange(size) < size // 2
    first = np.arange(size) == 0
    yield ones, np.where(first, 0.0, 1.0)
    yield ones, np.where(first, 2.0, 1.0)
    if every:
        yield ones, np.where(first, 2.0, 0.0)
        yield ones, np.where(first, 0.0, 2.0)
        yield ones, np.where(half, 2.0, 0.0)
        yield ones, 2 * ones
        yield ones, 0 * ones
        yield np.where(half, 1.0, 0.0), np.where(half, 0.0, 1.0)


class Attack(NamedTuple):
    """A trained score, and how much it promises: a loose lower bound, from trials that no final bound counts."""

    name: str
    score: distinguish.Score
    promise: float


def trained(key: jax.Array, releases: np.ndarray, **shape: int) -> Attack:
    """Returns an attack trained on the first half of the releases [2, n, d]; its promise is measured on the rest."""
    train_key, half = jax.random.fold_in(key, shape["layers"]), releases.shape[1] // 2
    score = learned.train(train_key, jnp.asarray(releases[:, :half]), **shape)
    scores = np.asarray(jax.jit(jax.vmap(jax.vmap(score)))(releases[:, half:]))
    aside, settings = half // 2, dict[str, Any](delta=0.0, confidence=SELECTING)
    rule = choose_rule(scores[:, :aside], **settings)
    counted = scores[:, aside:]
    promise, _ = epsilon_bounds(*errors(counted, *rule), counted.shape[1], counted.shape[1], **settings)
    return Attack("network" if shape["layers"] else "linear", score, float(promise))


def pilot(key: jax.Array, entry: Entry, family: jax.Array, trials: int) -> np.ndarray:
    """Releases of all pairs [pairs, 2, size] at once -> [pairs, 2, trials, d]."""

    def release(key: jax.Array, world: int) -> jax.Array:
        each = jax.vmap(entry.apply)(jax.random.split(key, len(family)), family[:, world])
        return each.reshape(len(family), -1).astype(jnp.float32)

    played = play(key, release, lambda releases: releases, trials, mesh=hosts.mesh("trials"))
    return np.moveaxis(played, 2, 0)


def audited(key: jax.Array, entry: Entry, trials: dict[str, int]) -> tuple[AuditResult, str, np.ndarray]:
    """(the final audit, its attack, its pair): the most promising attack on the most promising pairs."""
    family_key, search_key, pilot_key, train_key, final_key = jax.random.split(key, 5)
    family = jnp.asarray(np.array(list(pairs(entry.size, entry.every))), jnp.float32)
    light = {"steps": 300, "batch": 1024, "hidden": 16}
    promises = [
        max(trained(search_key, releases, layers=layers, **light).promise for layers in LAYERS)
        for releases in pilot(family_key, entry, family, trials["searching"])
    ]
    full = {"steps": 1500, "batch": max(trials["fitting"] >> 9, 1024), "hidden": 32}
    found: list[tuple[Attack, jax.Array]] = []
    for pair in family[np.argsort(promises)[-FINALISTS:]]:
        (releases,) = pilot(pilot_key, entry, pair[None], trials["fitting"])
        found += [(trained(train_key, releases, layers=layers, **full), pair) for layers in LAYERS]
    attack, pair = max(found, key=lambda one: one[0].promise)
    chosen = distinguish.Distinguisher(lambda *_: attack.score, None, attack.name)
    settings = {"trials": trials["final"], "claim": Claim(sniper.EPSILON), "confidence": CONFIDENCE}
    result = audit(entry.apply, *pair, key=final_key, distinguisher=chosen, mesh=hosts.mesh("trials"), **settings)
    return result, attack.name, np.asarray(pair, np.float64)


def compare(rows: Rows, entry: Entry, result: AuditResult, attack: str, pair: np.ndarray) -> None:
    """One row: our certified epsilon beside the published one, and the most that this pair could show."""
    name = entry.apply.__name__
    published, family = PUBLISHED[name], pairs(entry.size, entry.every)
    again, _ = epsilon_bounds(
        round(published.rates[1] * result.negatives),
        round((1 - published.rates[0]) * result.positives),
        result.negatives,
        result.positives,
        delta=0.0,
        confidence=CONFIDENCE,
    )
    setting = {
        "mechanism": name,
        "pair": pair.tolist(),
        "attack": attack,
        "claim": sniper.EPSILON,
        "verdict": result.verdict,
        "fpr": result.fpr,
        "fnr": result.fnr,
        "confidence": CONFIDENCE,
        "exact_of_pair": json_number(sniper_exact.pair_epsilon(name, *pair)),
        "exact_of_family": json_number(largest(sniper_exact.pair_epsilon(name, *of) for of in family)),
        "published": published._asdict(),
        "published_rates_at_our_trials": float(again),
    }
    scale = f"{result.trials:,} trials, {result.negatives:,} of each world counted"
    bounds = (result.epsilon_lower, result.epsilon_upper)
    best = max(published.linear, published.network)
    rows.add("epsilon_lower", setting, result.epsilon_lower, bounds, scale=scale, paper_value=best)


def largest(epsilons: Iterable[float | None]) -> float | None:
    """Returns the largest, unless one was not worked out."""
    values = list(epsilons)
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def attacked(rows: Rows, number: int, trials: dict[str, int]) -> None:
    """One entry of the table."""
    entry, key = ENTRIES[number], jax.random.fold_in(jax.random.key(rows.seed), number)
    compare(rows, entry, *audited(key, entry, trials))
    rows.finish_part(f"{entry.apply.__name__}: {rows.rows[-1]['ours']:.4f}")


REPRODUCIBLE = {"attacked": attacked}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("Bichsel et al., IEEE S&P 2021", "dp_sniper", chosen.out, chosen.seed)
    trials = QUICK_TRIALS if chosen.quick else TRIALS
    for number, entry in enumerate(ENTRIES):
        if not chosen.quick or entry.apply.__name__ in QUICK:
            rows.run(attacked, number, trials)


if __name__ == "__main__":
    main()
