"""Makes the tables, figures and facts of this paper's page."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dpaudit.auditing.bounds import plan
from experiments import pages
from experiments.pages import Fact, Row, Rows, fact, mean, number, only, select, table, values, verdicts
from experiments.paper003 import claims, figures
from experiments.paper003.audit import FAULTY
from experiments.paper003.bench import DELTA, EPSILON, SCALES
from experiments.paper003.claims import CLAIMS as SMALL
from experiments.paper003.claims import COMPARISONS, ERRORS, SAME, large, lost, ratio, scales
from experiments.paper003.full_claims import FULL_CLAIMS, MORE_FULL
from experiments.paper003.page_full import full_accuracies as full_accuracies
from experiments.paper003.page_full import full_choices as full_choices
from experiments.paper003.page_full import full_differences as full_differences
from experiments.paper003.page_full import full_first_weights as full_first_weights
from experiments.paper003.page_full import full_more_accurate as full_more_accurate
from experiments.paper003.page_full import full_revealed as full_revealed
from experiments.paper003.page_full import full_setting as full_setting
from experiments.paper003.page_full import full_targets as full_targets
from experiments.paper003.page_full import full_terms as full_terms
from experiments.paper003.page_full import full_verdicts as full_verdicts
from experiments.paper003.published import ACCURACY, LARGEST, LOSS, PLAIN_ACCURACY, RATIOS, ROUNDED, UNIT
from experiments.paper003.questions import CONFIDENCE, DETERMINISTIC, NULLS, TOGETHER

FILES = ("mc_dropout_risk.*.json", "mc_dropout_full*.json", "mc_dropout_unstated.json", "training_audit.json")
CLAIMS = (*SMALL[:3:2], SMALL[3], *FULL_CLAIMS, SMALL[-1])
MORE_CLAIMS = (*(claim for claim in SMALL if claim not in CLAIMS), *MORE_FULL)
ATTACKS = {"thresholds": "thresholds", "ratio": "likelihood ratio"}
FAULTS = ("noise halved", "clipping skipped")
RUN = {
    "shown": "data", "pixels": "pixels a side", "records": "records of D'", "shadow": "records of the shadow models",
    "batch_size": "batch", "epochs": "epochs", "steps": "steps", "noise": "noise multiplier", "network": "network",
    "models": "networks of an estimate", "repeats": "estimates of a data set", "samples": "T",
}  # fmt: skip
PAPER = SCALES["paper"]._asdict() | {"shown": "cifar10", "shadow": "of the test set", "network": "CNN32"}
PAPER |= {"steps": SCALES["paper"].steps}


def draw(rows: Rows, folder: Path) -> None:
    pages.save(figures.overview(scales(rows)), folder / "mc_dropout_overview.png")
    for name, own in scales(rows).items():
        for kind in ("risks", "samples", "distributions", "rounding"):
            pages.save(getattr(figures, kind)(own), folder / f"mc_dropout_{name}_{kind}.png")


def more_verdicts(rows: Rows) -> str:
    return verdicts(MORE_CLAIMS, rows)


def what_was_run(rows: Rows) -> str:
    found = scales(rows)
    trained = [only(own, "trained") for own in found.values()]
    lines = [[text, *(plain(run[name]) for run in (PAPER, *trained))] for name, text in RUN.items()]
    lines.append(["data sets", "4", *(str(len(targets(own))) for own in found.values())])
    for accounting in ("Renyi", "PLD"):
        whole = number(only(rows, "full_accounted", accounting=accounting)["ours"])
        own = [number(only(own, "accounted", accounting=accounting)["ours"]) for own in found.values()]
        stated = f"{number(EPSILON)}; recomputed {whole}" if accounting == "Renyi" else whole
        lines.append([f"promised ε at δ = {DELTA:g}, {accounting}", stated, *own])
    lines.append(["hours", "–", *(number(only(own, "hours")["ours"]) for own in found.values())])
    return table(["", "paper", *found], lines)


def plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else number(value)


def targets(rows: Rows) -> list[int]:
    return sorted(set(values(select(rows, "epsilon", part=3), "target")))


def terms(rows: Rows) -> Fact:
    return fact(True, confidence=CONFIDENCE, nulls=NULLS)


def rules(rows: Rows) -> Fact:
    return fact(True, errors=ERRORS, nats=SAME["estimate"], advantage=SAME["advantage"])


def answers(rows: Rows) -> str:
    lines = []
    for claim in COMPARISONS:
        for name, own in scales(rows).items():
            estimates = [claims.by_estimate(claim, own, above_null=above) for above in (False, True)]
            advantages = [claims.by_advantage(claim, own, attack) for attack in ATTACKS]
            lines.append([f"{claim.question}: {claim.text}", name, *map(str, estimates), *map(bold, advantages)])
    header = ["answer of the paper", "scale", "estimates", "estimates less null"]
    return table([*header, *(f"advantages, {name}" for name in ATTACKS.values())], lines)


def bold(tally: claims.Tally) -> str:
    return f"**{tally}**" if tally.holds or tally.opposite else str(tally)


def room(rows: Rows) -> Fact:
    """Returns the largest difference of advantages that the intervals of the first question do not exclude."""
    found = {name: max(row["high"] for row in select(own, "advantage", part=1)) for name, own in scales(rows).items()}
    return fact(all(value > 0 for value in found.values()), told="; ".join(f"{n}: {v:.2f}" for n, v in found.items()))


def above_null(rows: Rows) -> Fact:
    found = {name: claims.above_null_alone(own) for name, own in scales(rows).items()}
    return fact(True, told="; ".join(f"{name}: {tally}" for name, tally in found.items()))


def biased(rows: Rows) -> Fact:
    """Networks that differ in nothing give an estimate far above zero, and more for more statistics."""
    nulls = {
        name: [mean(select(own, "epsilon", part=1, seen=seen), "null") for seen in (DETERMINISTIC, figures.ALL_FOUR)]
        for name, own in scales(rows).items()
    }
    holds = all(0.5 < one < 0.6 * several for one, several in nulls.values())
    return fact(holds, told="; ".join(f"{name}: {a:.2f} and {b:.2f}" for name, (a, b) in nulls.items()))


def beside_paper(rows: Rows) -> str:
    told: list[tuple[str, str, Callable[[Rows], str]]] = [
        ("largest mean estimate", f"about {LARGEST:g}", lambda own: with_null(largest(own))),
        *((f"ratio, {seen}, data set 1", number(ratio, 1), ratio_of(seen)) for seen, ratio in RATIOS.items()),
        (f"mean std, data set 1, rounded to {UNIT}", " → ".join(map(str, ROUNDED)), rounded),
        ("accuracy lost by that", f"less than {100 * LOSS:g} point", lambda own: f"{100 * lost(own)[0]:.1f} points"),
        ("accuracy, one prediction", number(PLAIN_ACCURACY), accuracy_of(published=DETERMINISTIC)),
        *(
            (f"accuracy, mean of T = {count}", number(stated), accuracy_of(published="mean", samples=count))
            for count, stated in ACCURACY.items()
        ),
    ]
    return table(
        ["", "paper", *scales(rows)], [[text, stated, *map(of, scales(rows).values())] for text, stated, of in told]
    )


def largest(rows: Rows) -> Row:
    found = [row for row in select(rows, "epsilon", part=1) if row["setting"]["seen"] in (DETERMINISTIC, *TOGETHER)]
    return max(found, key=lambda row: row["ours"])


def ratio_of(seen: str) -> Callable[[Rows], str]:
    return lambda rows: f"{ratio(rows, seen):.1f} ({ratio(rows, seen, 'null'):.1f})"


def rounded(rows: Rows) -> str:
    before = only(rows, "epsilon", part=1, target=1, seen="mean std")
    return f"{with_null(before)} → {with_null(only(rows, 'epsilon', part=3, target=1, unit=UNIT))}"


def accuracy_of(**setting: Any) -> Callable[[Rows], str]:
    return lambda rows: number(select(rows, "utility", **setting)[0]["ours"])


def with_null(row: Row) -> str:
    return f"{number(row['ours'])} ({number(row['null'])})"


def estimates(rows: Rows) -> str:
    """Estimates, nulls and bounds of every data set at the scales that trained as many networks as the paper."""
    lines = []
    for name, own in large(rows).items():
        for target in targets(own):
            for seen in (DETERMINISTIC, *TOGETHER):
                row = only(own, "epsilon", part=1, target=target, seen=seen)
                cells = [f"{number(row['ours'])} ± {number(row['deviation'])}", number(row["null"])]
                cells += [f"{100 * row['infinite']:.0f}", number(row["honest"]), number(row["likelihood_ratio"])]
                lines.append([f"{name}, {target}: {seen}", *cells])
    return table(["data set: published", "estimate", "null", "infinite %", "honest", "likelihood ratio"], lines)


def ceilings(rows: Rows) -> Fact:
    """Returns what the honest bounds could be at most, and how far the outputs' are below."""
    most, shown = {}, {}
    for name, own in scales(rows).items():
        run = only(own, "trained")
        quarter = run["models"] * run["repeats"] // 4
        most[name] = plan.ceiling(quarter, quarter, delta=DELTA, confidence=CONFIDENCE)
        shown[name] = max(row[kind] for row in select(own, "epsilon") for kind in ("honest", "likelihood_ratio"))
    told = "; ".join(f"{name}: {shown[name]:.2f} of {most[name]:.2f}" for name in most)
    return fact(all(shown[name] < most[name] / 2 for name in most), told=told)


def defences(rows: Rows) -> str:
    lines = []
    for name, own in large(rows).items():
        for row in select(own, "utility"):
            at = {field: value for field, value in row["setting"].items() if field not in ("scale", "published")}
            if "samples" in at and at["samples"] not in (1, 10, 1_000):
                continue
            published = row["setting"]["published"]
            part = 1 if published == DETERMINISTIC else 2 if published == "mean" else 3
            named = ", ".join(f"{'T' if field == 'samples' else field} = {value:,}" for field, value in at.items())
            risk = select(own, "epsilon", part=part, seen=published, **at)
            cells = [f"{100 * row[field]:.1f}" for field in ("ours", "undecided")] + [number(row["calibration_error"])]
            cells += [
                f"{mean(risk):.2f} ({mean(risk, 'null'):.2f})",
                most(risk, "honest"),
                most(risk, "likelihood_ratio"),
            ]
            lines.append([f"{name}: {published}{', ' if named else ''}{named}", *cells])
        risk = select(own, "epsilon", part=3, seen="label")
        cells = [f"{mean(risk):.2f} ({mean(risk, 'null'):.2f})", most(risk, "honest"), most(risk, "likelihood_ratio")]
        lines.append([f"{name}: label alone", "–", "–", "–", *cells])
    header = "published | accuracy % | no label % | calibration error | estimate (null) | honest | likelihood ratio"
    return table(header, lines)


def most(rows: Rows, name: str) -> str:
    return number(max(row[name] for row in rows))


def beyond(rows: Rows) -> str:
    lines = []
    for name, own in scales(rows).items():
        for row in select(own, "white_box"):
            what = f"{row['networks']:,} trainings" if "networks" in row else f"one training, {row['guesses']:,} coins"
            rate = number(row.get("of_all"))
            lines.append(
                [
                    f"{name}: white box, {row['setting']['by']}",
                    what,
                    number(row["ours"]),
                    number(row.get("ceiling")),
                    rate,
                ]
            )
        for row in select(own, "one_run"):
            what = f"{row['runs']} networks, {row['targets']:,} targets each"
            bound = f"{number(row['ours'])} [{number(min(row['each']))}, {number(max(row['each']))}]"
            right = f"{100 * row['right']:.0f}% of the guesses are right"
            lines.append([f"{name}: one run, {row['setting']['seen']}", what, bound, number(row["ceiling"]), right])
    return table(["adversary", "what was run", "honest bound", "most possible", "estimate, or rate"], lines)


def white_box(rows: Rows) -> Fact:
    """One training seen whole shows most of what is promised, where the outputs for one record show nothing."""
    told = []
    for name, own in scales(rows).items():
        spent = only(own, "accounted", accounting="PLD")["ours"]
        shown = max(row["ours"] for row in select(own, "white_box"))
        told.append((name, shown, spent))
    holds = all(0.85 * spent < shown <= spent for _, shown, spent in told)
    return fact(holds, told="; ".join(f"{name}: {shown:.2f} of {spent:.2f}" for name, shown, spent in told))


def images(rows: Rows) -> str:
    titles = {"risks": "Fig. 5: estimates and bounds", "samples": "Fig. 6: risk against T"}
    titles |= {"distributions": "Fig. 7: the mean over networks", "rounding": "Fig. 8: rounding"}
    return "\n\n".join(
        f"**{name}**\n\n"
        + "\n".join(pages.image(title, f"mc_dropout_{name}_{kind}.png") for kind, title in titles.items())
        for name in scales(rows)
    )


Case = dict[str, Row]


def cases(rows: Rows) -> list[Case]:
    """Returns the three rows of each audit of a whole training, which stand together: two of these audits have one
    setting and differ in how many trainings they made."""
    found = select(rows, "epsilon_lower")
    return [
        {row["setting"]["training"]: row for row in three}
        for three in zip(*(found[i::3] for i in range(3)), strict=True)
    ]


def trainings(rows: Rows) -> str:
    lines = []
    for case in cases(rows):
        sound = case["sound"]
        at = sound["setting"]
        what = [at["audit"], *(at[name] for name in ("data", "target") if name in at)]
        what += {"any": ["nothing assumed"], "Gaussian": ["Gaussian curve"]}.get(at.get("curve"), [])
        batches = f"{'full' if at['rate'] == 1 else 'q = ' + format(at['rate'], '.3f')}, {at['steps']} steps"
        cells = [batches, f"{at['delta']:g}", number(at["accounted"]), marked(sound), number(share(sound))]
        lines.append([", ".join(what), *cells, *(marked(case[fault]) for fault in FAULTS), "; ".join(scales_of(case))])
    header = ["adversary", "batches", "δ", "accounted", "sound", "share", *FAULTS, "what was run (sound; faulty)"]
    return table(header, lines)


def scales_of(case: Case) -> Iterable[str]:
    return dict.fromkeys(case[name]["scale"].partition(", test accuracy")[0] for name in ("sound", *FAULTS))


def marked(row: Row) -> str:
    return f"**{number(row['ours'])}**" if row["ours"] > row["setting"]["accounted"] else number(row["ours"])


def share(row: Row) -> float:
    return row["ours"] / row["setting"]["accounted"]


def trainings_judged(rows: Rows) -> Fact:
    """No sound training is accused; how many of the faulty ones are found out."""
    kept = [share(case["sound"]) <= 1 for case in cases(rows)]
    caught = [share(case[fault]) > 1 for case in cases(rows) for fault in FAULTS]
    confidence = select(rows, "epsilon_lower")[0]["setting"]["confidence"]
    return fact(
        all(kept) and sum(caught) > len(caught) / 2,
        sound=len(kept),
        caught=sum(caught),
        faulty=len(caught),
        confidence=confidence,
    )


def rare_events(rows: Rows) -> Fact:
    """Returns the share of the accounted epsilon that full batches reach: nothing assumed, or read as a Gaussian
    curve."""
    found = {}
    for curve, delta in (("any", 1e-2), ("any", 1e-5), ("Gaussian", 1e-2), ("Gaussian", 1e-5)):
        own = select(rows, "epsilon_lower", audit="white box", training="sound", rate=1.0, curve=curve, delta=delta)
        ordered = sorted(map(share, own))
        found[curve, delta] = ordered[0], ordered[-1]
    holds = found["any", 1e-5][1] < found["any", 1e-2][0] < found["Gaussian", 1e-5][0]
    told = {
        f"{curve.lower()}{i}": " to ".join(f"{v:.2f}" for v in found[curve, delta])
        for curve in ("any", "Gaussian")
        for i, delta in enumerate((1e-2, 1e-5))
    }
    return fact(holds, large=1e-2, small=1e-5, **told)


def earlier_rows(rows: Rows) -> Fact:
    return fact(any(row["fingerprint"] is None for row in select(rows, "epsilon_lower")), faulty=FAULTY)
