"""The auditor against planted faults: each is caught, and its correct twin is not accused.

    python -m experiments.fault_zoo                     # about half an hour
    python -m experiments.fault_zoo --quick --out DIR   # four faults, 40 audits of their twins: under a minute

Every fault is looked at by ``dpaudit.inspect`` and attacked until it is certain that it breaks its promise; a second
audit, of a number of trials fixed in advance and on another key, bounds its epsilon. Its twin gets the same look
and the same second audit. Both get the plain call, which is told of no distinguisher, on their releases as they are
and negated, permuted, moved by 2^20 and divided by 2^20. Then the correct twins are audited a thousand times over,
about equally often, at the same confidence.

Expect every fault caught by its audits, some by ``dpaudit.inspect`` too; no finding in a twin and no violation; at
most 4 false alarms in 1,000.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dpaudit import AuditResult, Case, InputError, Mechanism, hosts, inspect, play
from dpaudit import audit as run_audit
from dpaudit.auditing import sequential
from dpaudit.auditing.distinguish import Distinguisher
from dpaudit.auditing.estimate import choose_threshold, epsilon_bounds, errors
from dpaudit.auditing.result import json_number
from experiments.common import Rows, options
from experiments.zoo import FAMILIES, Fault
from experiments.zoo.disguise import DISGUISES, disguised

CONFIDENCE = 0.999
AUDITS, AUDIT_TRIALS = 1_000, 10_000
QUICK_FAMILIES, QUICK_AUDITS, QUICK_TRIALS = ("clipping", "randomness", "rounding", "selection"), 40, 2_000


def audit(case: Case, attack: Distinguisher | None, key: jax.Array, **settings: Any) -> AuditResult:
    """An audit of a case at the zoo's confidence; without an attack the plain call, which is told of none."""
    mechanism, x0, x1, claim = case
    settings |= {"claim": claim, "distinguisher": attack, "confidence": CONFIDENCE, "mesh": hosts.mesh("trials")}
    return run_audit(mechanism, x0, x1, key=key, **settings)


def catch(fault: Fault, key: jax.Array) -> dict[str, int | None]:
    """Trials that every attack needs until the violation is certain; None where the fault's trials do not do."""
    needed: dict[str, int | None] = {}
    for attack, attack_key in zip(fault.attacks, jax.random.split(key, len(fault.attacks)), strict=True):
        found = audit(fault.fault, attack, attack_key, trials=fault.trials, until=sequential.violation())
        needed[attack.name] = found.trials if found.verdict == "violation" else None
    return needed


def look(case: Case, fault: Fault) -> list[str]:
    """The kinds of what the gray-box check finds."""
    return sorted(inspect(case.mechanism, case.x0, case.x1, claim=case.claim, **fault.look).kinds)


def examine(rows: Rows, family: str, fault: Fault, key: jax.Array) -> None:
    """Everything about one fault, in two rows: the fault and its twin."""
    catch_key, fault_key, twin_key = jax.random.split(key, 3)
    needed, found = catch(fault, catch_key), look(fault.fault, fault)
    best = min(fault.attacks, key=lambda attack: needed[attack.name] or math.inf)
    claim = fault.fault.claim
    setting = {"fault": fault.name, "family": family, "source": fault.source, **(claim._asdict() if claim else {})}
    setting |= {"true_epsilon": json_number(fault.true_epsilon), "distinguisher": best.name}
    scale = f"{fault.trials:,} trials, fixed in advance"
    for quantity, case, own_key, more in (
        ("fault_epsilon", fault.fault, fault_key, {"needed": needed, "inspect": found}),
        ("twin_epsilon", fault.twin, twin_key, {"inspect": look(fault.twin, fault)}),
    ):
        result = audit(case, best, own_key, trials=fault.trials)
        bounds = (result.epsilon_lower, result.epsilon_upper)
        rows.add(quantity, setting | more | {"verdict": result.verdict}, result.epsilon_hat, bounds, scale=scale)
    rows.finish_part(f"{fault.name}: {needed}, {found}")


def forms_of(fault: Fault) -> list[str]:
    """The disguises that leave the fault's loss in the release."""
    return [how for how in DISGUISES if not (fault.last_bits and how == "shifted")]


def plain(rows: Rows, family: str, fault: Fault, key: jax.Array, disguises: Sequence[str]) -> None:
    """What the plain call says of the fault and of its twin, as they are and in these disguises: a row each."""
    forms = (None, *disguises)
    for form, form_key in zip(forms, jax.random.split(key, len(forms)), strict=True):
        for of, case, own_key in zip(
            ("fault", "twin"), (fault.fault, fault.twin), jax.random.split(form_key), strict=True
        ):
            shown = case if form is None else disguised(case, form)
            setting = {"fault": fault.name, "family": family, "of": of, "disguise": form}
            scale = f"{fault.trials:,} trials, no distinguisher named"
            try:
                result = audit(shown, None, own_key, trials=fault.trials)
            except InputError as refusal:  # a release that the plain call cannot read is a fault that it misses
                rows.add("plain_call", setting | {"verdict": f"refused: {refusal}"}, None, scale=scale)
                continue
            bounds = (result.epsilon_lower, result.epsilon_upper)
            rows.add("plain_call", setting | {"verdict": result.verdict}, result.epsilon_hat, bounds, scale=scale)
    rows.finish_part(f"{fault.name}, plain calls")


def lower_bounds(
    case: Case, attack: Distinguisher, key: jax.Array, *, audits: int, trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Many audits of one case out of one long game, each on trials of its own, so that it is compiled once.

    Returns:
      (epsilon_lower of ``dpaudit.audit``, whether ``until=sequential.violation()`` would have stopped), [audits].
    """
    mechanism = case.mechanism if isinstance(case.mechanism, Mechanism) else Mechanism(case.mechanism)
    fit_key, play_key = jax.random.split(key)
    score = attack.fit(fit_key, mechanism, case.x0, case.x1)
    pair, half = (case.x0, case.x1), trials // 2
    mesh = hosts.mesh("trials")
    scores = play(play_key, lambda key, world: mechanism.apply(key, pair[world]), score, audits * half, mesh=mesh)
    lower, accused = np.zeros(audits), np.zeros(audits, bool)
    aside = half // 4 if attack.threshold is None else 0
    claim = case.claim or mechanism.claim
    assert claim is not None
    settings = {"delta": claim.delta, "confidence": CONFIDENCE}
    for i, part in enumerate(np.split(scores.astype(np.float64), audits, axis=1)):
        threshold = attack.threshold
        if threshold is None:
            threshold = choose_threshold(part[:, :aside], **settings)
        counted = part[:, aside:]
        lower[i] = epsilon_bounds(*errors(counted, threshold), *[counted.shape[1]] * 2, **settings)[0]
        watch = sequential.start(claim, confidence=CONFIDENCE, until=sequential.violation())
        accused[i] = sequential.update(watch, *(counted > threshold)).violation
    return lower, accused


def false_alarms(rows: Rows, faults: list[Fault], key: jax.Array, *, audits: int, trials: int) -> None:
    """Audits of all twins, spread evenly; a twin is attacked by the attack made for its fault."""
    shares = np.diff(np.linspace(0, audits, len(faults) + 1).astype(int))
    alarms, stops = 0, 0
    for fault, share, own_key in zip(faults, shares, jax.random.split(key, len(faults)), strict=True):
        case, attack = fault.twin, fault.attacks[-1]
        lower, accused = lower_bounds(case, attack, own_key, audits=int(share), trials=trials)
        claim = case.claim
        assert claim is not None
        alarms, stops = alarms + int((lower > claim.epsilon).sum()), stops + int(accused.sum())
    scale = f"{audits:,} audits of {len(faults)} twins, {trials:,} trials each, confidence {CONFIDENCE}"
    rows.add("false_alarms", {"audit": "fixed", "allowed": 0.004 * audits}, alarms, scale=scale)
    rows.add("false_alarms", {"audit": "sequential", "allowed": 0.004 * audits}, stops, scale=scale)
    rows.finish_part(f"false alarms: {alarms} and {stops}")


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("auditor", "fault_zoo", chosen.out, chosen.seed)
    zoo = [(family, fault) for family, faults in FAMILIES.items() for fault in faults]
    if chosen.quick:
        few = [(family, FAMILIES[family][0]) for family in QUICK_FAMILIES]
        zoo = [(family, fault._replace(attacks=fault.attacks[-1:])) for family, fault in few]
    zoo_key, twin_key = jax.random.split(jax.random.key(chosen.seed))
    plain_key = jax.random.fold_in(zoo_key, len(zoo))
    for (family, fault), key in zip(zoo, jax.random.split(zoo_key, len(zoo)), strict=True):
        examine(rows, family, fault, key)
    for (family, fault), key in zip(zoo, jax.random.split(plain_key, len(zoo)), strict=True):
        if chosen.quick:
            plain(rows, family, fault._replace(trials=QUICK_TRIALS), key, ())
        else:
            plain(rows, family, fault, key, forms_of(fault))
    audits, trials = (QUICK_AUDITS, QUICK_TRIALS) if chosen.quick else (AUDITS, AUDIT_TRIALS)
    false_alarms(rows, [fault for _, fault in zoo], twin_key, audits=audits, trials=trials)


if __name__ == "__main__":
    main()
