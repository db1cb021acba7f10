"""Audits what one server and all owners but one learn of an honest owner's record in one step.

    python -m experiments.paper001.audit                     # twenty minutes, no data needed
    python -m experiments.paper001.audit --quick --out DIR   # under a minute

Four parts. *Owners*: SPGC, LDP, noise reduced to 1/k at each owner, and each server's own noise, against k - 1 of 2
to 100 owners. *Rules*: what the paper's rule for the noise promises, under both neighbouring relations. *Faults*:
broken variants of the protocol beside sound ones. *View*: all that the evaluator holds of real openings, beside the
release alone.

Expect SPGC to spend the same whatever the number of owners, reduced noise to lose its promise from two owners on, the
paper's rule to break its own wherever a record is replaced, every fault to be found out by the adversary named, and
the evaluator to learn from its view what the release tells.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import AuditResult, Claim, Mechanism, audit
from dpaudit._engine import hosts
from dpaudit.auditing.attacks.distinguish import Distinguisher, projection
from dpaudit.auditing.result import json_number
from dpaudit.secure.noise import accounting
from dpaudit.secure.noise import gaussian as sigma
from experiments.common import Rows, options
from experiments.paper001 import evaluator as spgc_evaluator
from experiments.paper001 import views as spgc_views
from experiments.paper001.faults import VARIANTS
from experiments.paper001.views import Aggregation, View, aggregation

DELTA, CONFIDENCE = 1e-3, 0.95
EPSILONS, OWNERS, RELATIONS = (0.5, 2.0, 8.0), (2, 3, 10, 100), ("replace", "add_remove")
VIEWS: dict[str, Callable[[Aggregation, int], View]] = {
    "SPGC": spgc_views.spgc,
    "LDP": spgc_views.ldp,
    "reduced noise": spgc_views.reduced,
    "own noise of each server": spgc_views.own_noise,
}


def record(agreed: Aggregation, neighbouring: str) -> tuple[jax.Array, jax.Array]:
    """Returns a record of one clip norm along one coordinate: against its opposite, or against nothing."""
    levels = agreed.scale.levels
    return jnp.full(1, -levels if neighbouring == "replace" else 0, jnp.int32), jnp.full(1, levels, jnp.int32)


def spent(agreed: Aggregation, scheme: str, owners: int, neighbouring: str) -> float:
    """Returns the true epsilon of the pair that is audited: exact for the binomial, Gaussian for the others."""
    if scheme == "SPGC":
        shift = sigma.SENSITIVITY[neighbouring] * agreed.scale.levels
        return accounting.least_epsilon(agreed.noise, shift=shift, delta=DELTA)
    left = agreed.noise_multiplier / (math.sqrt(owners) if scheme == "reduced noise" else 1.0)
    return sigma.epsilon(left, delta=DELTA, neighbouring=neighbouring)


def claimed(agreed: Aggregation, scheme: str, epsilon: float, neighbouring: str) -> Claim:
    """Epsilon, for which a Gaussian of the noise's variance is just enough; for SPGC's binomial, what it accounts."""
    if scheme == "SPGC":
        moved = sigma.SENSITIVITY[neighbouring] * agreed.scale.levels
        epsilon = accounting.epsilon(agreed.noise, sensitivity=moved, dimension=1, delta=DELTA)
    return Claim(epsilon, DELTA, neighbouring)


def add(rows: Rows, quantity: str, setting: dict[str, Any], result: AuditResult) -> None:
    bounds = result.epsilon_lower, result.epsilon_upper
    setting |= {"claimed": result.claim and result.claim.epsilon, "delta": result.delta, "confidence": CONFIDENCE}
    setting |= {"verdict": result.verdict, "attack": result.method.split(",")[0].split(";")[0]}
    rows.add(quantity, setting, result.epsilon_hat, bounds, scale=f"{result.trials:,} trials")
    print(f"{quantity} {setting}: {result.epsilon_hat:.3f} [{bounds[0]:.3f}, {bounds[1]:.3f}]", flush=True)


def one(
    rows: Rows,
    view: Mechanism | Callable[..., Any],
    pair: tuple[Any, Any],
    claim: Claim,
    attack: Distinguisher,
    trials: int,
) -> AuditResult:
    key = jax.random.fold_in(jax.random.key(rows.seed), len(rows.rows))
    how = {"trials": trials, "confidence": CONFIDENCE, "mesh": hosts.mesh("trials")}
    return audit(view, *pair, key=key, claim=claim, distinguisher=attack, **how)


def by_owners(rows: Rows, neighbouring: str, epsilon: float, owners: Sequence[int], trials: int) -> None:
    """Each scheme, with noise that would do for its claim if all of it were unknown."""
    agreed = aggregation(sigma.analytic(epsilon=epsilon, delta=DELTA, neighbouring=neighbouring))
    for scheme, view in VIEWS.items():
        claim = claimed(agreed, scheme, epsilon, neighbouring)
        for k in owners:
            result = one(rows, view(agreed, k), record(agreed, neighbouring), claim, projection, trials)
            setting = {"scheme": scheme, "owners": k, "neighbouring": neighbouring, "epsilon": epsilon}
            setting |= {"true": json_number(spent(agreed, scheme, k, neighbouring))}
            add(rows, "owners", setting, result)
    rows.finish_part(f"owners, epsilon {epsilon:g}, {neighbouring}")


def by_rule(rows: Rows, neighbouring: str, epsilon: float, trials: int) -> None:
    """SPGC with the noise of the paper's rule, which is claimed to be enough for epsilon."""
    agreed = aggregation(sigma.classical(epsilon=epsilon, delta=DELTA))
    claim = Claim(epsilon, DELTA, neighbouring)
    result = one(rows, spgc_views.spgc(agreed, 3), record(agreed, neighbouring), claim, projection, trials)
    setting = {"neighbouring": neighbouring, "epsilon": epsilon, "noise_multiplier": agreed.noise_multiplier}
    setting |= {"true": json_number(spent(agreed, "SPGC", 3, neighbouring))}
    gaussian = sigma.epsilon(agreed.noise_multiplier, delta=DELTA, neighbouring=neighbouring)
    add(rows, "rule", setting | {"gaussian": gaussian}, result)
    rows.finish_part(f"the paper's rule, epsilon {epsilon:g}, {neighbouring}")


def by_fault(rows: Rows, number: int, share: float = 1.0) -> None:
    """Audits a variant, with that share of its trials."""
    variant = VARIANTS[number]
    mechanism, x0, x1, claim = variant.case
    assert claim is not None
    result = one(rows, mechanism, (x0, x1), claim, variant.attack, int(share * variant.trials))
    setting = {"fault": variant.fault, "broken": variant.broken, "seen_by": variant.seen_by}
    add(rows, "fault", setting, result)
    rows.finish_part(f"fault: {variant.fault}")


def by_view(rows: Rows) -> None:
    """Audits what a network learns from the evaluator's view, of the release alone, and of a view that tells too
    much."""
    seen = {"the release alone": spgc_evaluator.released, "all that H2 holds": spgc_evaluator.view}
    seen["the same, labels end in the bit that they hide"] = partial(spgc_evaluator.view, telling=True)
    for name, view in seen.items():
        result = spgc_evaluator.told(view, seed=rows.seed, confidence=CONFIDENCE)
        add(rows, "view", {"seen": name}, result)
    rows.finish_part("the evaluator's view")


REPRODUCIBLE = {"by_owners": by_owners, "by_rule": by_rule, "by_fault": by_fault, "by_view": by_view}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("001", "spgc_audit", chosen.out, chosen.seed)
    if chosen.quick:
        owners, epsilons, counted, trials, rare, share = (2, 100), (2.0,), 200_000, 200_000, 0, 0.25
        relations = RELATIONS[:1]
    else:
        owners, epsilons, counted, trials, rare, share = OWNERS, EPSILONS, 8_000_000, 20_000_000, 400_000_000, 1.0
        relations = RELATIONS
    for neighbouring, epsilon in itertools.product(relations, epsilons):
        rows.run(by_owners, neighbouring, epsilon, list(owners), counted)
    for neighbouring, epsilon in itertools.product(RELATIONS, epsilons):
        narrow = (neighbouring, epsilon) == ("add_remove", EPSILONS[-1])  # takes many trials to prove
        rows.run(by_rule, neighbouring, epsilon, rare if narrow else trials)
    for number, variant in enumerate(VARIANTS):
        if variant.broken or not chosen.quick:
            rows.run(by_fault, number, share)
    rows.run(by_view)


if __name__ == "__main__":
    main()
