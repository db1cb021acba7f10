"""Makes the page's tables and facts of trainings through the real protocol, of Table 1, and of what is as printed."""

from itertools import pairwise

from experiments.pages import Fact, Row, Rows, apart, fact, number, only, ranged, select, table, values
from experiments.paper001.claims import trials
from experiments.paper001.more_claims import SMALLEST, ratio_of_totals, whole_mnist
from experiments.paper001.printed import REAL, TRUNCATING, WITHIN
from experiments.paper001.published import ACCURACY, CANCER_PRINTED, COSTED, GIGABYTES_BY_EPSILON, TIMES_LDP
from experiments.paper001.tasks import EPSILONS

HOW = {
    ("noisy", "circuit"): "SPGC, circuit",
    ("noisy", "transfers"): "SPGC, transfers",
    ("plain", "circuit"): "MPC only",
}


def prior(rows: Rows, data: str) -> str:
    return f"{only(rows, 'prior', data=data)['ours']:.1f}"


def headline_lost(rows: Rows) -> Fact:
    """SPGC is fewer than the paper's points above LDP on Cancer at epsilon 8, in every reading of the setting."""
    ours, other = (
        only(rows, "accuracy", data="Cancer", scheme=scheme, epsilon=8.0, rule="classical", owners=3)
        for scheme in ("SPGC", "LDP")
    )
    more, error = apart(ours, other, trials(ours))
    paper = ours["paper_value"] - other["paper_value"]
    readings = [_lead(rows, *reading) for reading in _readings(rows)]
    most = max(readings)
    return fact(more + error < paper and most < paper, paper=paper, more=more, count=len(readings), most=most)


def told_thrice(rows: Rows) -> Fact:
    """The paper prints its accuracy on Cancer in three places, which differ; ours are beside the section's."""
    differ = len(set(CANCER_PRINTED.values())) == 3
    return fact(differ and CANCER_PRINTED["section"] == ACCURACY["Cancer"]["SPGC", 8.0], **CANCER_PRINTED)


def as_guessing(rows: Rows) -> Fact:
    """The paper's lowest accuracies are near those of guessing one class."""
    cancer, diabetes = (100 - only(rows, "prior", data=data)["ours"] for data in ("Cancer", "Diabetes"))
    at = {"scheme": "SPGC", "rule": "classical", "owners": 3}
    printed = [
        only(rows, "accuracy", data=data, epsilon=epsilon, **at)["paper_value"]
        for data, epsilon in (("Cancer", 0.5), ("Cancer", 2.0), ("Diabetes", 0.5))
    ]
    holds = all(abs(each - (100 - cancer)) < 3 for each in printed[:2]) and abs(printed[2] - diabetes) < 0.5
    larger = 100 - cancer
    return fact(holds, one=printed[0], two=printed[1], larger=larger, three=printed[2], smaller=diabetes)


def _readings(rows: Rows) -> list[tuple[str, int]]:
    cancer = select(rows, "printed_accuracy", data="Cancer", scheme="LDP")
    return list(dict.fromkeys((row["setting"]["bins"], row["setting"]["parameters"]) for row in cancer))


def _lead(rows: Rows, bins: str, parameters: int) -> float:
    """Returns the most that the difference could be, by its interval."""
    at = {"bins": bins, "parameters": parameters, "epsilon": 8.0}
    ours = only(rows, "printed_accuracy", scheme="SPGC", arithmetic="as printed", **at)
    more, error = apart(ours, only(rows, "printed_accuracy", scheme="LDP", **at), trials(ours))
    return more + error


NONE = {"SPGC": "MPC only", "LDP": "non-private"}  # a scheme without its noise


def as_printed(rows: Rows) -> str:
    """Returns Cancer's accuracies by reading of the network and bins, scheme and epsilon."""
    found = select(rows, "printed_accuracy", data="Cancer")
    lines = []
    for first in select(found, "printed_accuracy", epsilon=EPSILONS[0]):
        at = first["setting"]
        same = {"bins": at["bins"], "parameters": at["parameters"], "arithmetic": at["arithmetic"]}
        none = select(found, "printed_accuracy", scheme=NONE[at["scheme"]], **same)
        noisy = [only(found, "printed_accuracy", scheme=at["scheme"], epsilon=e, **same) for e in EPSILONS]
        cells = [_both(rows, none[0]) if none else "–", *(_both(rows, row) for row in noisy)]
        lines.append([f"{at['bins']}, {at['parameters']:,}: {at['scheme']}", at["arithmetic"], *cells])
    header = ["bins, parameters: scheme", "arithmetic", "no noise", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
    return table(header, lines)


def _both(rows: Rows, row: Row) -> str:
    balanced = only(rows, "printed_balanced_accuracy", **row["setting"])
    return f"{ranged(row, 1)}; {balanced['ours']:.1f}"


def rounding(rows: Rows) -> str:
    """Returns MNIST's accuracies without noise, by steps and arithmetic."""
    found = select(rows, "printed_accuracy", data="MNIST")
    lines = []
    for row in found:
        at = row["setting"]
        how = {"as printed": "as printed, to nearest"}.get(at["arithmetic"], at["arithmetic"])
        lines.append([at["scheme"], how, f"{at['steps']:,}", trials(row), ranged(row, 1)])
    return table(["scheme", "arithmetic", "steps", "trials", "accuracy"], lines)


def truncation(rows: Rows) -> Fact:
    """Rounding the owner's sum to the nearest costs nothing; truncating it does in every trial, in both readings, and
    too few trials leave intervals that reach zero."""
    plain, nearest, zero, dropped = (whole_mnist(rows, each) for each in (REAL, "as printed", *TRUNCATING))
    lost = [apart(plain, row, trials(row)) for row in (nearest, zero, dropped)]
    holds = abs(lost[0][0]) <= lost[0][1] and all(less < error for less, error in lost[1:])
    holds = holds and max(zero["ours_high"], dropped["ours_high"]) < plain["ours_low"]
    told = {"zero": lost[1][0], "zero_error": lost[1][1], "dropped": lost[2][0], "dropped_error": lost[2][1]}
    return fact(holds and trials(zero) == trials(dropped), trials=trials(zero), **told)


def flaw(rows: Rows) -> Fact:
    """The scheme without a scale decodes +m C as its opposite, and the paper's decodes it right."""
    wrong, right = (only(rows, "flaw", arithmetic=name)["ours"] for name in ("Chase et al.", "as printed"))
    m = only(rows, "flaw", arithmetic="as printed")["setting"]["examples"]
    learns = only(rows, "printed_accuracy", arithmetic="Chase et al.", epsilon=8.0)
    at = {"scheme": "SPGC", "epsilon": COSTED[0]}
    after, within = (only(rows, "printed_accuracy", arithmetic=how, **at) for how in ("as printed", WITHIN))
    holds = wrong < 0 < right and learns["ours"] > 80 and within["ours"] < after["ours"]
    told = {"learns": ranged(learns, 1), "after": ranged(after, 1), "within": ranged(within, 1)}
    return fact(holds, m=m, wrong=wrong, widest=COSTED[0], **told)


def protocol(rows: Rows) -> str:
    """Returns a line for each training through the real protocol."""
    lines = []
    for row in select(rows, "protocol_differing"):
        at = row["setting"]
        same = {name: at[name] for name in ("data", "mode", "protocol")}
        p = select(rows, "protocol_noise_p", **same)
        minutes, step = only(rows, "protocol_minutes", **same), only(rows, "protocol_step_seconds", **same)
        cpu, hours = only(rows, "protocol_cpu_seconds", **same), select(rows, "protocol_hours", **same)
        lines.append(
            [
                f"{at['data']}: {HOW[at['mode'], at['protocol']]}",
                f"{at['steps']:,}",
                f"{row['ours']:.0f} of {row['coordinates']:,}",
                number(p[0]["ours"]) if p else "–",
                number(only(rows, "protocol_accuracy", **same)["ours"], 1),
                number(minutes["ours"], 1),
                number(step["ours"], 3),
                number(only(rows, "protocol_gigabytes", **same)["ours"]),
                " + ".join(f"{value:.0f}" for value in cpu["of"].values()),
                number(only(rows, "protocol_peak_gib", **same)["ours"]),
                f"{hours[0]['times_as_fast']:.1f}" if hours else "–",
            ]
        )
    header = ["training", "steps", "sums that differ", "p of the noise", "accuracy", "minutes", "s a step"]
    return table([*header, "GB", "CPU s: h1 + h2 + owners", "GiB", "times the paper's speed"], lines)


def equal_sums(rows: Rows) -> Fact:
    """No coordinate differs from the simulation, and no noise is unlike its law."""
    differing, p = select(rows, "protocol_differing"), select(rows, "protocol_noise_p")
    loads = [float(row["scale"].rsplit("load ", 1)[1].split()[0]) for row in differing]
    holds = not any(row["ours"] for row in differing) and all(row["ours"] > 0.001 / len(p) for row in p)
    return fact(holds, coordinates=sum(row["coordinates"] for row in differing), low=min(loads), high=max(loads))


def table_one(rows: Rows) -> str:
    """Returns Table 1: hours of computing and communicating, ours and the paper's, by scheme and epsilon."""
    lines = []
    for data in values(select(rows, "training_hours"), "data"):
        for scheme, without in NONE.items():
            cells = [_hours(rows, data, without, None), *(_hours(rows, data, scheme, epsilon) for epsilon in COSTED)]
            lines.append([f"{data}, {scheme}", *cells])
    return table(["hours: ours (paper's)", "no noise", *(f"ε = {epsilon:g}" for epsilon in COSTED)], lines)


def _hours(rows: Rows, data: str, scheme: str, epsilon: float | None) -> str:
    at = {"data": data, "scheme": scheme, "epsilon": epsilon}
    found = select(rows, "training_hours", **at)
    if not found:
        return "–"
    parts = [only(rows, f"{name}_hours", **at) for name in ("computing", "communicating")]
    ours = " + ".join(_small(part["ours"]) for part in parts)
    return f"{ours} ({' + '.join(number(part['paper_value']) for part in parts)})"


def _small(hours: float) -> str:
    return f"{hours:.2g}" if hours < 0.1 else f"{hours:.2f}"


def paper_bytes(rows: Rows) -> Fact:
    """The paper's bytes grow from the largest epsilon to the smallest, and fall in between."""
    back = [
        f"on {data} {less:,.1f} at ε = {small:g} after {more:,.1f} at {large:g}"
        for data, printed in GIGABYTES_BY_EPSILON.items()
        for (small, less), (large, more) in pairwise(zip(COSTED, printed, strict=True))
        if less < more
    ]
    rise = all(printed[0] > printed[-1] for printed in GIGABYTES_BY_EPSILON.values())
    return fact(rise and back, told="; ".join(back))


def loaded(rows: Rows) -> Fact:
    found = [float(row["scale"].rsplit("load ", 1)[1]) for row in select(rows, "training_hours")]
    return fact(True, low=min(found), high=max(found))


def whole_ratios(rows: Rows) -> Fact:
    """The multiples that the text gives of communication are those of whole hours in its table, at epsilon 0.5."""
    printed = " / ".join(str(times) for times in TIMES_LDP.values())
    totals = [ratio_of_totals(data) for data in TIMES_LDP]
    close = all(abs(ratio - times) < 1 for ratio, times in zip(totals, TIMES_LDP.values(), strict=True))
    return fact(
        close, printed=printed, totals=" / ".join(f"{ratio:.1f}" for ratio in totals), epsilon=COSTED[SMALLEST]
    )
