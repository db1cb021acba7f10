"""Makes the tables, figures and facts of this paper's page."""

import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dpaudit.report.rows import read_rows
from experiments import pages
from experiments.pages import Fact, Row, Rows, broken, fact, grouped, number, only, ranged, select, table
from experiments.paper002 import figures
from experiments.paper002.adaptive import adapting as adapting
from experiments.paper002.adaptive import overtaken as overtaken
from experiments.paper002.adaptive import wandering as wandering
from experiments.paper002.budgets import begin as begin
from experiments.paper002.budgets import best_at as best_at
from experiments.paper002.budgets import never_behind as never_behind
from experiments.paper002.budgets import rule as rule
from experiments.paper002.choices import choices as choices
from experiments.paper002.choices import far_off as far_off
from experiments.paper002.choices import first_weights as first_weights
from experiments.paper002.choices import own_trials as own_trials
from experiments.paper002.choices import wide_trials as wide_trials
from experiments.paper002.claims import (
    AS_PRINTED,
    FEW,
    KEEPS,
    by_itself,
    deciding,
    judge,
    margins,
    named,
    printed,
    ran,
    scale_of,
    scales,
    spread,
    trials_of,
    what_would_change,
)
from experiments.paper002.claims import CLAIMS as CLAIMS
from experiments.paper002.columns import NOISE, Columns, columns, of_all, title
from experiments.paper002.course_claims import course_verdicts as course_verdicts
from experiments.paper002.devices import same_elsewhere as same_elsewhere
from experiments.paper002.published import ACCURACY, ADAPTIVE, BUDGETS, FINDINGS, ROUNDS, in_order, place
from experiments.paper002.runs import NON_PRIVATE, RULES
from experiments.paper002.substitution import DIRECTIONS

FILES = ("clip_size.json", "clip_size_devices.json", "clip_size_unstated.json", "federated_audit.json")
WORDS = {True: "**holds**", False: "**fails**", None: "open"}
FAULTS = ("noise halved", "clipping skipped")
PICTURE = "clip_size_mnist_10000"


def draw(rows: Rows, folder: Path) -> None:
    kept = read_rows(folder / "clip_size_curves.json")
    for name, figure in drawn([row for row in kept if scale_of(row) == FEW]).items():
        pages.save(figure, folder / f"{PICTURE}_{name}.png")
    whole = [row for row in kept if "accuracy" in row and of_all(scale_of(row))]
    long = [row for row in whole if row["rounds"] == ROUNDS]
    found = {"curves": figures.whole(whole), "lowered": figures.lowered(long, KEEPS)}
    for name, figure in (found | {"clip_norms": figures.whole_clip_norms(whole)}).items():
        pages.save(figure, folder / f"clip_size_whole_{name}.png")


def drawn(kept: Rows) -> dict[str, Any]:
    """Draws every figure of one scale, from its curves and histograms."""
    curves = [row for row in kept if "accuracy" in row]
    noises = sorted({curve["sensitivity"] for curve in curves} - {None})
    found: dict[str, Any] = {"fixed": figures.fixed(curves), "schedules": figures.schedules(curves)}
    found |= {f"lowered_{NOISE[noise]}": figures.lowered(curves, noise) for noise in noises}
    found |= {"adaptive": figures.adaptive(curves), "norms": figures.norms(curves)}
    for noise in noises:
        own = [row for row in kept if "noisy" in row and (row["name"], row["sensitivity"]) == ("adaptive0.01", noise)]
        if own:
            found[f"histograms_{NOISE[noise]}"] = figures.histograms(own)
    return found


def noises(rows: Rows) -> Fact:
    printed, demanded = (only(rows, "message_epsilon", sensitivity=sensitivity) for sensitivity in NOISE)
    return fact(
        printed["ours"] > 2 * printed["paper_value"] and abs(demanded["ours"] - demanded["paper_value"]) < 0.01,
        promised=demanded["paper_value"], delta=demanded["setting"]["delta"], spent=printed["ours"],
        wide=demanded["setting"]["noise_multiplier"], narrow=printed["setting"]["noise_multiplier"],
    )  # fmt: skip


def accuracies(rows: Rows) -> str:
    return accuracies_of(rows, columns(rows, whole=True))


def few_accuracies(rows: Rows) -> str:
    return accuracies_of(rows, columns(rows, whole=False))


def accuracies_of(rows: Rows, columns: Columns) -> str:
    """Tabulates every setting that was run at some of these scales."""
    lines, shown = [], []
    for scale, noise in columns:
        found = select(rows, "accuracy_percent", **named(scale))
        own = [row for row in found if row["setting"]["sensitivity"] in (None, noise)]
        shown.append({row["setting"]["name"]: row for row in own})
    for name in (NON_PRIVATE, *RULES):
        cells = [spread(own[name]) if name in own else "–" for own in shown]
        if any(name in own for own in shown):
            lines.append([name, printed(name), *cells])
    # Runs without noise stand in every column and count in one.
    hours = [
        sum(row["seconds"] for row in own.values() if row["setting"]["sensitivity"] == noise or noise == KEEPS) / 3600
        for (_, noise), own in zip(columns, shown, strict=True)
    ]
    lines.append(["hours of all runs", "–", *(f"{each:.1f}" for each in hours)])
    return table(["setting", "paper", *(title(*column) for column in columns)], lines)


def fits(rows: Rows) -> Fact:
    """The paper's accuracies are nearer to those with noise of 2C, by the settings that ran with both and all clients:
    root mean squares of what they are off, in points."""
    off: dict[int, list[float]] = {noise: [] for noise in NOISE}
    found = {
        (row["setting"]["name"], row["setting"]["sensitivity"]): row["ours"]
        for row in select(rows, "accuracy_percent", dataset="mnist", rounds=ROUNDS)
        if row["setting"]["simulated"] == row["setting"]["clients_per_round"]
    }
    for name, (paper, _) in ACCURACY.items():
        if all((name, noise) in found for noise in NOISE):
            for noise, own in off.items():
                own.append(found[name, noise] - paper)
    printed, kept = ((sum(x * x for x in own) / max(1, len(own))) ** 0.5 for own in off.values())
    return fact(off[KEEPS] and kept < printed, count=len(off[KEEPS]), printed=printed, kept=kept)


def few_clients(rows: Rows) -> Fact:
    """Settings without an adaptive rule, with all clients of a round and with a few in place of them: the largest
    difference is below one point, or what trials of the setting differ by."""
    apart = []
    for row in select(rows, "accuracy_percent"):
        at = row["setting"]
        if at["simulated"] < at["clients_per_round"] and at["name"] not in ADAPTIVE:
            whole = {**at, "simulated": at["clients_per_round"]}
            apart += [
                (abs(row["ours"] - other["ours"]), row, other) for other in select(rows, "accuracy_percent", **whole)
            ]
    good = [each for each in apart if max(each[1]["ours"], each[2]["ours"]) > 70]
    _, few, every = max(good, key=lambda each: each[0])
    alike = all(far < max(1, *(row["ours"] - (row["ours_low"] or row["ours"]) for row in both)) for far, *both in good)
    return fact(alike, settings=len(good), name=few["setting"]["name"], few=spread(few), every=spread(every))


def times_as_fast(rows: Rows) -> Fact:
    """How many times as long a round takes with all clients, of settings with noise that were run both ways at the
    paper's rounds."""
    found = {
        scale: {
            row["setting"]["name"]: row["ours"]
            for row in select(rows, "seconds_per_round", sensitivity=KEEPS, **named(scale))
        }
        for scale in (AS_PRINTED, FEW)
    }
    times = sorted(found[AS_PRINTED][name] / few for name, few in found[FEW].items() if name in found[AS_PRINTED])
    return fact(times[0] > 1, least=times[0], middle=times[len(times) // 2], most=times[-1])


def leading(rows: Rows) -> Fact:
    """A few clients' error is as large as the noise where updates differ most, and small beside it over all
    directions."""
    found = {
        (row["setting"]["sensitivity"], row["setting"]["directions"] == DIRECTIONS): row
        for row in select(rows, "error_over_noise")
    }
    wide, narrow, all_wide, all_narrow = (found[of] for of in ((2, True), (1, True), (2, False), (1, False)))
    at = wide["setting"]
    return fact(
        wide["ours"] > 1.5 and narrow["ours"] > 1.5 and all_narrow["ours"] < 1.1,
        rounds=at["rounds_before"], clip_norm=at["clip_norm"], directions=DIRECTIONS,
        low_wide=wide["ours_low"], high_wide=wide["ours_high"], low_narrow=narrow["ours_low"],
        high_narrow=narrow["ours_high"], all_wide=all_wide["ours"], all_narrow=all_narrow["ours"],
    )  # fmt: skip


def reports(rows: Rows) -> Fact:
    few, every = (only(rows, "report_deviation", reports=scale[-1])["ours"] for scale in (FEW, AS_PRINTED))
    return fact(few > 5 * every, few=few, every=every)


def claims(rows: Rows) -> str:
    return claims_of(rows, columns(rows, whole=True))


def few_claims(rows: Rows) -> str:
    return claims_of(rows, columns(rows, whole=False))


def claims_of(rows: Rows, columns: Columns) -> str:
    """Tabulates the claims at some scales: margins and whether they hold; no adaptive rule is judged by a few
    clients."""
    found = {column: {each.margin.claim: each for each in judge(margins(rows, *column))} for column in columns}
    found = {column: own for column, own in found.items() if own}
    lines = []
    for i, claim in in_order():
        adapts = {*claim.larger, *claim.smaller} & set(ADAPTIVE)
        if not any(i in own for own in found.values()) or (adapts and not all(of_all(scale) for scale, _ in columns)):
            continue
        cells = []
        for own in found.values():
            each = own.get(i)
            word = WORDS[each.holds] if each else ""
            cells.append(f"{word} {each}" if each else "–")
        where = f"{claim.finding}" if claim.finding in FINDINGS else f"Section {claim.finding}"
        lines.append([f"{where}: {claim.text}", *cells])
    return table(["claim", *(title(*column) for column in found)], lines)


def changes(rows: Rows) -> str:
    """Tabulates what each verdict stands on, and what would change it."""
    lines = []
    for i, claim in in_order():
        if set(claim.larger) & set(BUDGETS):
            continue
        found = deciding(i, rows)
        cells = (
            ["open", "–", "not run", "a run of all clients"]
            if found is None
            else [
                f"{WORDS[found.holds]} {found}",
                by_itself(found.margin),
                ran(found.margin),
                what_would_change(found),
            ]
        )
        lines.append([f"{place(claim)}: {claim.text}", *cells])
    return table(["claim", "verdict", "by its own trials", "of", "what would change it"], lines)


def findings(rows: Rows) -> str:
    return "\n".join(f"{finding}. {text}" for finding, text in FINDINGS.items())


def commands(rows: Rows) -> str:
    return "\n".join(chain.from_iterable(commands_of(rows, scale) for scale in scales(rows) if of_all(scale)))


def few_commands(rows: Rows) -> str:
    return "\n".join(chain.from_iterable(commands_of(rows, scale) for scale in scales(rows) if not of_all(scale)))


def commands_of(rows: Rows, scale: tuple[Any, ...]) -> list[str]:
    """Lists what was run at one scale, a command for each noise and number of trials."""
    dataset, *numbers = scale
    options = ("--rounds", "--clients-per-round", "--simulated")
    shared = ["--work", "DIR", "--dataset", dataset, *chain(*zip(options, map(str, numbers), strict=True))]
    groups: dict[tuple[int, int], list[str]] = {}
    for row in select(rows, "accuracy_percent", **named(scale)):
        groups.setdefault((row["setting"]["sensitivity"] or KEEPS, trials_of(row)), []).append(row["setting"]["name"])
    lines = []
    for (noise, trials), names in sorted(groups.items()):
        how = ["--sensitivity", str(noise), "--trials", str(trials), "--only", *dict.fromkeys(names)]
        lines.append(shlex.join(["python", "-m", "experiments.clip_size", *shared, *how]))
    return lines


def spent(rows: Rows) -> str:
    lines = []
    for row in select(rows, "spent_epsilon", release="statistic"):
        at = row["setting"]
        who = (
            "the server, which knows who takes part" if at["sample"] == "known" else "who does not know who takes part"
        )
        relation = {"replace": "one replaced", "add_remove": "one added or removed"}[at["neighbouring"]]
        cells = [at["accounting"], relation, number(row["paper_value"], 3), f"{row['ours']:.2g}"]
        lines.append([f"{at['rule']}, {who}", *cells])
    return table(["rule, seen by", "accounting", "neighbours", "paper", "ε"], lines)


def messages(rows: Rows) -> Fact:
    found = select(rows, "spent_epsilon", release="message")
    of = {row["setting"]["participations"]: row for row in found}
    once, twice, most = (of[k] for k in (1, 2, max(of)))
    return fact(
        True, delta=once["setting"]["delta"], scale=once["scale"], once=once["setting"]["clients"],
        twice=twice["setting"]["clients"], spent=twice["ours"], most=max(of), all=most["ours"],
    )  # fmt: skip


def lowest_bin(rows: Rows) -> str:
    return f"{2**-8:g}"


def audited(rows: Rows) -> Fact:
    at = select(rows, "epsilon_lower", seat="message")[0]["setting"]
    return fact(True, confidence=at["confidence"], claimed=at["claimed"])


def audited_messages(rows: Rows) -> str:
    lines = []
    for group in message_audits(rows):
        sound, faulty = group["sound"], group["sensitivity C"]
        at = sound["setting"]
        how = {"any": "nothing", "Gaussian": "Gaussian curve"}[at["curve"]]
        cells = [how, f"{at['delta']:g}", f"{at['dimension']:,}", sound["scale"]]
        cells += [broken(sound, at["claimed"]), broken(faulty, at["claimed"]), number(faulty["setting"]["true"])]
        lines.append([at["client"], *cells])
    header = ["message", "assumed", "δ", "d", "what was run", "sound: ε", "sensitivity C: ε", "its true ε"]
    return table(header, lines)


def messages_judged(rows: Rows) -> Fact:
    sound, faulty = (
        [group[fault]["ours_low"] > group[fault]["setting"]["claimed"] for group in message_audits(rows)]
        for fault in ("sound", "sensitivity C")
    )
    return fact(not any(sound) and all(faulty), caught=sum(faulty), audits=len(faulty))


def message_audits(rows: Rows) -> list[dict[str, Row]]:
    """Returns the rows of a message, sound and faulty, under one assumption."""
    found = select(rows, "epsilon_lower", seat="message")
    return grouped(found, "fault", "client", "curve", "dimension", "delta")


def runs(rows: Rows) -> list[dict[str, Row]]:
    """Returns the rows of a whole run, sound and faulty, seen from one seat."""
    found = [row for row in select(rows, "epsilon_lower") if row["setting"]["seat"] != "message"]
    return grouped(found, "fault", "seat", "data", "clients", "clients_per_round", "rounds")


def audited_runs(rows: Rows) -> str:
    lines = []
    for group in runs(rows):
        at = group["sound"]["setting"]
        same = {name: at[name] for name in ("seat", "data", "clients", "clients_per_round", "rounds")}
        mu, allowed = only(rows, "mu", fault="sound", **same), at["accounted"]
        federation = f"{at['data']}, {at['clients_per_round']} of {at['clients']:,} clients, {at['rounds']} rounds"
        cells = [at["participations"], number(at["messages"]), number(allowed), ranged(mu)]
        cells += [broken(group[fault], allowed) for fault in ("sound", *FAULTS)]
        lines.append([f"{at['seat']}: {federation}", *cells, group["sound"]["scale"]])
    header = [
        "seen",
        "rounds of a client",
        "messages: ε",
        "accounted: ε",
        "sound: μ",
        "sound: ε",
        *FAULTS,
        "sound run",
    ]
    return table(header, lines)


def runs_judged(rows: Rows) -> Fact:
    """Sound runs stay within what is accounted; the transcript shows every fault."""
    found = runs(rows)

    def above(group: dict[str, Row], fault: str) -> bool:
        return group[fault]["ours_low"] > group[fault]["setting"]["accounted"]

    seen = [group for group in found if group["sound"]["setting"]["seat"] == "transcript"]
    holds = not any(above(group, "sound") for group in found) and all(
        above(group, f) for group in seen for f in FAULTS
    )
    return fact(holds, faults=len(seen) * len(FAULTS), sound=len(found))


def few_images(rows: Rows) -> str:
    titles: Sequence[tuple[str, str]] = (
        ("fixed", "Figs. 1 and 2: fixed C"),
        ("schedules", "Fig. 3: C over the rounds"),
        ("lowered_C", "Figs. 4 and 5: lowered C, noise of C"),
        ("lowered_2C", "Figs. 4 and 5: lowered C, noise of 2C"),
        ("adaptive", "Figs. 7 and 8: adaptive rules"),
        ("norms", "Fig. 10: mean norm of a client's gradient before clipping"),
        ("histograms_C", "Fig. 9: norms at the updates of adaptive0.01, noise of C, first trial"),
        ("histograms_2C", "Fig. 9: norms at the updates of adaptive0.01, noise of 2C, first trial"),
    )
    return "\n\n".join(pages.image(text, f"{PICTURE}_{name}.png") for name, text in titles)
