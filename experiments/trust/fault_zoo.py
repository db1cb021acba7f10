"""Plays the auditor against planted faults: each is caught, and its correct twin is not accused.

    python -m experiments.trust.fault_zoo                     # about half an hour
    python -m experiments.trust.fault_zoo --plain             # the plain calls alone, beside the rows that are there
    python -m experiments.trust.fault_zoo --quick --out DIR   # four faults, 40 audits of their twins: under a minute

Every fault is looked at by ``dpaudit.inspect`` and attacked until it is certain that it breaks its promise; a second
audit, of a number of trials fixed in advance and on another key, bounds its epsilon. Its twin gets the same look
and the same second audit. Both get the plain call, which is told of no distinguisher, on their releases as they are
and negated, permuted, moved by 2^20 and divided by 2^20. Then the correct twins are audited a thousand times over,
about equally often, at the same confidence.

Expect every fault caught by its audits, some by ``dpaudit.inspect`` too; no finding in a twin and no violation; at
most 4 false alarms in 1,000.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dpaudit import AuditResult, Case, InputError, Mechanism, inspect, play
from dpaudit import audit as run_audit
from dpaudit._engine import hosts
from dpaudit.auditing.attacks.choose import Rule, choose_rule
from dpaudit.auditing.attacks.distinguish import Distinguisher
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.bounds.estimate import epsilon_bounds, errors
from dpaudit.auditing.result import json_number
from experiments.common import Rows, options
from experiments.trust.zoo import FAMILIES, Fault
from experiments.trust.zoo.disguise import DISGUISES, disguised

CONFIDENCE = 0.999
AUDITS, AUDIT_TRIALS = 1_000, 10_000
ZOO = {fault.name: (family, fault) for family, faults in FAMILIES.items() for fault in faults}
QUICK_FAMILIES, QUICK_AUDITS, QUICK_TRIALS = ("clipping", "randomness", "rounding", "selection"), 40, 2_000


def audit(case: Case, attack: Distinguisher | None, key: jax.Array, **settings: Any) -> AuditResult:
    """Returns an audit of a case at the zoo's confidence; without an attack the plain call, which is told of none."""
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
    """Returns the kinds of what the gray-box check finds."""
    return sorted(inspect(case.mechanism, case.x0, case.x1, claim=case.claim, **fault.look).kinds)


def examine(rows: Rows, name: str, *, all_attacks: bool = True) -> None:
    """Everything about one fault, in two rows: the fault and its twin; by its last attack alone, or by all."""
    family, fault = ZOO[name]
    if not all_attacks:
        fault = fault._replace(attacks=fault.attacks[-1:])
    catch_key, fault_key, twin_key, _ = keys_of(rows, name)
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
    """Returns the disguises that leave the fault's loss in the release."""
    return [how for how in DISGUISES if not (fault.last_bits and how == "shifted")]


def plain(rows: Rows, name: str, disguises: Sequence[str], trials: int | None = None) -> None:
    """What the plain call says of the fault and of its twin, as they are and in these disguises: a row each; with the
    fault's own number of trials unless another is given."""
    family, fault = ZOO[name]
    fault = fault if trials is None else fault._replace(trials=trials)
    forms, key = (None, *disguises), keys_of(rows, f"plain {name}")[0]
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
    settings: dict[str, Any] = {"delta": claim.delta, "confidence": CONFIDENCE}
    fixed = {"both_events": attack.threshold is not None}
    for i, part in enumerate(np.split(scores.astype(np.float64), audits, axis=1)):
        rule = choose_rule(part[:, :aside], **settings) if attack.threshold is None else Rule(attack.threshold)
        counted = part[:, aside:]
        lower[i] = epsilon_bounds(*errors(counted, *rule), *[counted.shape[1]] * 2, **settings, **fixed)[0]
        watch = sequential.start(claim, confidence=CONFIDENCE, until=sequential.violation(), **fixed)
        accused[i] = sequential.update(watch, *((counted > rule.threshold) == rule.above)).violation
    return lower, accused


def keys_of(rows: Rows, name: str) -> jax.Array:
    """Of what is done with a fault and its twin, whatever other faults there are: four."""
    return jax.random.split(jax.random.fold_in(jax.random.key(rows.seed), zlib.crc32(name.encode())), 4)


def false_alarms(rows: Rows, names: Sequence[str], audits: int, trials: int) -> None:
    """Audits of these faults' twins, spread evenly; a twin is attacked by the attack made for its fault.

    Each game is judged twice: as an audit of a number of trials fixed in advance, and as one that stops when it is
    certain.
    """
    faults = [ZOO[name][1] for name in names]
    shares = np.diff(np.linspace(0, audits, len(faults) + 1).astype(int))
    alarms, stops = 0, 0
    for name, fault, share in zip(names, faults, shares, strict=True):
        *_, own_key = keys_of(rows, name)
        case, attack = fault.twin, fault.attacks[-1]
        lower, accused = lower_bounds(case, attack, own_key, audits=int(share), trials=trials)
        claim = case.claim
        assert claim is not None
        alarms, stops = alarms + int((lower > claim.epsilon).sum()), stops + int(accused.sum())
    scale = f"{audits:,} audits of {len(faults)} twins, {trials:,} trials each, confidence {CONFIDENCE}"
    rows.add("false_alarms", {"audit": "fixed", "allowed": 0.004 * audits}, alarms, scale=scale)
    rows.add("false_alarms", {"audit": "sequential", "allowed": 0.004 * audits}, stops, scale=scale)
    rows.finish_part(f"false alarms: {alarms} and {stops}")


REPRODUCIBLE = {"examine": examine, "plain": plain, "false_alarms": false_alarms}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--plain", action="store_true", help="the plain calls alone; other rows stay")
    chosen = parser.parse_args()
    rows = Rows("auditor", "fault_zoo", chosen.out, chosen.seed, keep=chosen.plain)
    names = [FAMILIES[family][0].name for family in QUICK_FAMILIES] if chosen.quick else list(ZOO)
    for name in names:
        if not chosen.plain:
            rows.run(examine, name, all_attacks=not chosen.quick)
        rows.run(plain, name, [] if chosen.quick else forms_of(ZOO[name][1]), QUICK_TRIALS if chosen.quick else None)
        jax.clear_caches()  # thousands of programs need more maps of memory than a process may have
    audits, trials = (QUICK_AUDITS, QUICK_TRIALS) if chosen.quick else (AUDITS, AUDIT_TRIALS)
    if not chosen.plain:
        rows.run(false_alarms, names, audits, trials)


if __name__ == "__main__":
    main()
