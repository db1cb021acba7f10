"""Judges the paper's claims beyond its headlines: accuracies and times from which its text draws a conclusion."""

import math

from experiments.pages import Claim, Row, Rows, Verdict, apart, from_interval, number, only, ranged, select
from experiments.paper001.claims import COST, TRAIN, accuracy, leads, printed, trials
from experiments.paper001.printed import REAL, TRUNCATING
from experiments.paper001.published import ACCURACY, BY_EPSILON, COSTED, LDP_BY_EPSILON, MPC_ONLY, TIMES_LDP
from experiments.paper001.tasks import EPSILONS

PRINTED, TABLE = "paper001.printed", "paper001.table_one"
CLOSE = 1.0  # points of accuracy within which the paper calls two schemes the same
LEARNS = 5.0  # points below another scheme from which one does not learn
TYPICAL, SMALLEST = COSTED.index(2.0), COSTED.index(EPSILONS[0])
TRAINED = {"MNIST": "channels together"}  # the reading of the paper's network that is trained, of those that are timed
LONGER = {
    "Cancer": 0.5,
    "Diabetes": 0.05,
}  # hours more at the smallest trained epsilon than at the largest, says the text


def close(rows: Rows, data: str, schemes: tuple[str, str], epsilon: float | None) -> Verdict:
    """Tells whether two schemes are the same to a point: where the whole interval of their difference is within it, and
    not where all of it is beyond."""
    ours, other = (accuracy(rows, data, scheme, epsilon) for scheme in schemes)
    more, error = apart(ours, other, trials(ours))
    told = f"{more:+.2f} ± {error:.2f} points: {ranged(ours, 1)} and {ranged(other, 1)}"
    holds = True if abs(more) + error <= CLOSE else False if abs(more) - error > CLOSE else None
    return Verdict(holds, told, ours["scale"])


def equal(rows: Rows, data: str) -> Verdict:
    """Tells whether MPC alone is as accurate as no privacy."""
    return close(rows, data, ("MPC only", "non-private"), None)


def as_printed_without_noise(rows: Rows) -> Verdict:
    """Tells whether the printed accuracies without privacy all lie within the ranges of our trials."""
    found = [accuracy(rows, data, "non-private", None) for data in ACCURACY]
    inside = [row["ours_low"] <= row["paper_value"] <= row["ours_high"] for row in found]
    told = "; ".join(f"{row['setting']['data']} {ranged(row, 1)}" for row in found)
    several = all(trials(row) > 1 for row in found)
    return Verdict(all(inside) if several else None, told, "; ".join(row["scale"] for row in found))


def alike(rows: Rows, data: str, epsilon: float) -> Verdict:
    """Tells whether SPGC and LDP are as accurate."""
    return close(rows, data, ("SPGC", "LDP"), epsilon)


def ldp_leads(rows: Rows) -> Verdict:
    """Tells whether LDP is ahead on MNIST and Diabetes at the two largest epsilons: in all four, by the
    intervals of the differences; it fails where SPGC is ahead in one."""
    found = {}
    for data in ("MNIST", "Diabetes"):
        for epsilon in EPSILONS[:0:-1]:
            ldp, ours = (accuracy(rows, data, scheme, epsilon) for scheme in ("LDP", "SPGC"))
            found[data, epsilon] = *apart(ldp, ours, trials(ours)), f"{data} {trials(ours)} trials"
    told = "; ".join(f"{data}, ε = {e:g}: {more:+.1f} ± {error:.1f}" for (data, e), (more, error, _) in found.items())
    ends = [(more - error, more + error) for more, error, _ in found.values()]
    holds = False if min(high for _, high in ends) < 0 else True if min(low for low, _ in ends) > 0 else None
    return Verdict(holds, f"{told} points", "; ".join(dict.fromkeys(scale for *_, scale in found.values())))


def whole_mnist(rows: Rows, arithmetic: str) -> Row:
    """Returns the accuracy of whole trainings on MNIST without noise."""
    steps = max(row["setting"]["steps"] for row in select(rows, "printed_accuracy", data="MNIST"))
    return only(rows, "printed_accuracy", data="MNIST", steps=steps, arithmetic=arithmetic)


def truncated(rows: Rows) -> Verdict:
    """Tells whether truncating the owner's sum costs MNIST accuracy, in either reading of bits that are cut off: toward
    zero, or dropped, which rounds down.

    It holds where the interval of a reading's loss is below zero, and fails where both readings rule out a loss as
    large as printed.
    """
    plain = whole_mnist(rows, REAL)
    paper = ACCURACY["MNIST"]["MPC only", None] - ACCURACY["MNIST"]["non-private", None]
    told, found = [], set()
    for arithmetic in TRUNCATING:
        ours = whole_mnist(rows, arithmetic)
        more, error = apart(ours, plain, trials(ours))
        told.append(f"{arithmetic.split(', ')[1]} {more:+.2f} ± {error:.2f} points, {ranged(ours, 1)}")
        decided = True if more + error < 0 else False if more - error > paper else None
        found.add(None if math.isinf(error) else decided)
    holds = True if True in found else False if found == {False} else None
    return Verdict(holds, f"{'; '.join(told)}; no privacy {ranged(plain, 1)}", plain["scale"])


def chase(rows: Rows) -> Verdict:
    """Tells whether the scheme without a scale fails to learn where no noise fills the ring."""
    worst = only(rows, "printed_accuracy", arithmetic="Chase et al.", epsilon=8.0)
    best = only(
        rows,
        "printed_accuracy",
        arithmetic="as printed",
        bins="equal width",
        parameters=182,
        epsilon=8.0,
        scheme="SPGC",
    )
    less, error = apart(best, worst, trials(worst))
    told = f"{less:+.1f} ± {error:.1f} points: {ranged(best, 1)} with the paper's scale and {ranged(worst, 1)}, ε = 8"
    return Verdict(from_interval(less - error - LEARNS, less + error - LEARNS), told, worst["scale"])


def _hours(rows: Rows, data: str, scheme: str, epsilon: float | None, part: str = "training") -> Row:
    return only(rows, f"{part}_hours", data=data, scheme=scheme, epsilon=epsilon)


def _cost(rows: Rows, data: str, mode: str) -> Row:
    """Returns the hours of real steps, of the network that is trained, on a machine with nothing else to do."""
    return only(rows, "hours", data=data, reading=TRAINED.get(data, ""), mode=mode, depth=1)


def long(rows: Rows, data: str) -> Verdict:
    """Tells whether a training takes about as long, within a factor of two."""
    row = _cost(rows, data, "noisy")
    times = row["paper_value"] / row["ours"]
    return Verdict(0.5 < times < 2, f"{number(row['ours'])} hours, {times:.0f} times as fast", row["scale"])


def noise_costs(rows: Rows, data: str) -> Verdict:
    """Tells whether the noise adds about as large a part of the hours, within a factor of two."""
    with_noise, without = (_cost(rows, data, mode) for mode in ("noisy", "plain"))
    ours = with_noise["ours"] / without["ours"] - 1
    told = f"{number(with_noise['ours'])} against {number(without['ours'])} hours: {ours:+.0%}"
    return Verdict(0.5 < ours / part_added(data) < 2, told, with_noise["scale"])


def grows(rows: Rows, data: str, epsilon: float = COSTED[0]) -> Verdict:
    """Tells whether hours grow as epsilon falls to this from the table's largest; a tenth may be the machine's."""
    narrow, wide = (_hours(rows, data, "SPGC", each) for each in (COSTED[-1], epsilon))
    more = wide["ours"] / narrow["ours"] - 1
    told = f"{wide['ours']:#.3g} against {narrow['ours']:#.3g} hours: {more:+.0%}"
    return Verdict(None if abs(more) < 0.1 else more > 0, told, wide["scale"])


def proportional(rows: Rows) -> Verdict:
    """Tells whether hours grow in proportion to the noise, within a factor of two, on every data set."""
    wide, narrow = COSTED[0], COSTED[SMALLEST]
    times = narrow / wide  # the rule's noise is in proportion to 1/epsilon
    own = {data: [_hours(rows, data, "SPGC", epsilon) for epsilon in (wide, narrow)] for data in BY_EPSILON}
    grown = {data: more["ours"] / less["ours"] for data, (more, less) in own.items()}
    told = ", ".join(f"{data} {each - 1:+.0%}" for data, each in grown.items())
    scale = f"steps timed, ε from {narrow:g} to {wide:g}"
    return Verdict(
        all(0.5 < each / times < 2 for each in grown.values()), f"{told} for {times:g} times the noise", scale
    )


def over_ldp(rows: Rows, data: str) -> Verdict:
    """Tells whether SPGC communicates about as many times as long as LDP, within a factor of two."""
    ours, other = (_hours(rows, data, scheme, 2.0, "communicating") for scheme in ("SPGC", "LDP"))
    times = ours["ours"] / other["ours"]
    return Verdict(0.5 < times / TIMES_LDP[data] < 2, f"{times:.0f} times", ours["scale"])


def communicates(rows: Rows) -> Verdict:
    """Tells whether nearly all of a training on Cancer is communication."""
    part, whole = (_hours(rows, "Cancer", "SPGC", 2.0, name)["ours"] for name in ("communicating", "training"))
    return Verdict(part / whole > 0.98, f"{part / whole:.1%}", _hours(rows, "Cancer", "SPGC", 2.0)["scale"])


def ratio_of_totals(data: str) -> float:
    """Returns the paper's SPGC hours over its LDP hours at its smallest trained epsilon, computing included."""
    return BY_EPSILON[data][SMALLEST].training / LDP_BY_EPSILON[data][SMALLEST].training


def times_ldp(data: str) -> str:
    return f"{TIMES_LDP[data]} times; whole hours of its table {ratio_of_totals(data):.1f} at ε = {COSTED[SMALLEST]:g}"


def part_added(data: str) -> float:
    """Returns the part of the paper's hours without noise that the noise adds."""
    return BY_EPSILON[data][TYPICAL].training / MPC_ONLY[data].training - 1


def added(data: str) -> str:
    hours = f"{BY_EPSILON[data][TYPICAL].training:g} against {MPC_ONLY[data].training:g} hours"
    return f"{hours}: {part_added(data):+.0%}"


def longer_in_table(data: str) -> str:
    """Tells the hours that the text says are added at the smallest trained epsilon, beside those of the paper's table."""
    wide, narrow = (BY_EPSILON[data][place].training for place in (SMALLEST, -1))
    return f"{LONGER[data]:g} hours; in its table {wide:g} against {narrow:g}: {wide - narrow:.2f} hours, {wide / narrow - 1:+.1%}"


def part_longer(data: str) -> float:
    """Returns what the text's hours are of the paper's hours at the largest epsilon."""
    return LONGER[data] / BY_EPSILON[data][-1].training


def proportion_in_table() -> str:
    """Tells by how much hours grow in the paper's table, and the noise with them."""
    grown = {data: hours[0].training / hours[SMALLEST].training - 1 for data, hours in BY_EPSILON.items()}
    told = ", ".join(f"{data} {each:+.1%}" for data, each in grown.items())
    return f"in its table {told} for {COSTED[SMALLEST] / COSTED[0]:g} times the noise"


# fmt: off
MORE_CLAIMS = (
    Claim(f"MPC alone is as accurate as no privacy on Cancer (within {CLOSE:g} point)", "98.3% both", lambda rows: equal(rows, "Cancer"), TRAIN),
    Claim(f"MPC alone is as accurate as no privacy on Diabetes (within {CLOSE:g} point)", "67.2% both", lambda rows: equal(rows, "Diabetes"), TRAIN),
    Claim("Without privacy, accuracies are as printed", "MNIST 97.4, Cancer 98.3, Diabetes 67.2%", as_printed_without_noise, TRAIN),
    Claim("Fixed-point truncation costs accuracy on MNIST (N = 16)", "-0.3 points", truncated, PRINTED),
    Claim("The scheme of Chase et al. does not learn (Cancer)", "", chase, PRINTED),
    Claim(f"SPGC and LDP are alike on MNIST, ε = 8 (within {CLOSE:g} point)", "about the same", lambda rows: alike(rows, "MNIST", 8.0), TRAIN),
    Claim(f"SPGC and LDP are alike on MNIST, ε = 2 (within {CLOSE:g} point)", "about the same", lambda rows: alike(rows, "MNIST", 2.0), TRAIN),
    Claim("Section 5.4.1: LDP is more accurate than SPGC on MNIST and Diabetes, ε = 8 and 2 (Section 5.3.1 has SPGC ahead on Diabetes, ε = 8)", "", ldp_leads, TRAIN),
    Claim(f"SPGC and LDP are alike on Cancer, ε = 0.5 (within {CLOSE:g} point)", "hardly apart", lambda rows: alike(rows, "Cancer", 0.5), TRAIN),
    Claim("SPGC is less accurate than LDP on Diabetes, ε = 0.5", "-2.8 points", lambda rows: leads(rows, "Diabetes", 0.5, -2.8), TRAIN),
    Claim("SPGC is as accurate on MNIST as printed, ε = 0.5", "88.6%", lambda rows: printed(rows, "MNIST", "SPGC", 0.5), TRAIN),
    Claim("SPGC is as accurate on Diabetes as printed, ε = 8", "64.2%", lambda rows: printed(rows, "Diabetes", "SPGC", 8.0), TRAIN),
    Claim("SPGC is as accurate on Diabetes as printed, ε = 0.5", "35.1%", lambda rows: printed(rows, "Diabetes", "SPGC", 0.5), TRAIN),
    Claim("LDP is as accurate on Cancer as printed, ε = 8", "86.6%", lambda rows: printed(rows, "Cancer", "LDP", 8.0), TRAIN),
    Claim("A training on MNIST takes 115 hours", "115.1 hours", lambda rows: long(rows, "MNIST"), COST),
    Claim("A training on Diabetes takes 1.2 hours", "1.22 hours", lambda rows: long(rows, "Diabetes"), COST),
    Claim(f"The noise adds 43 hours ({part_added('MNIST'):.0%}) on MNIST", added("MNIST"), lambda rows: noise_costs(rows, "MNIST"), COST),
    Claim(f"The noise adds 4 hours ({part_added('Cancer'):.0%}) on Cancer", added("Cancer"), lambda rows: noise_costs(rows, "Cancer"), COST),
    Claim(f"The noise adds 0.4 hours ({part_added('Diabetes'):.0%}) on Diabetes", added("Diabetes"), lambda rows: noise_costs(rows, "Diabetes"), COST),
    Claim("Hours grow as ε falls from 8 to 0.01 on MNIST", "117.45 against 114.5 hours", lambda rows: grows(rows, "MNIST"), TABLE),
    Claim(f"Section 5.3.2: hours grow by {LONGER['Cancer']:g} ({part_longer('Cancer'):.1%}) as ε falls from 8 to 0.5 on Cancer", longer_in_table("Cancer"), lambda rows: grows(rows, "Cancer", EPSILONS[0]), TABLE),
    Claim(f"Section 5.3.2: hours grow by {LONGER['Diabetes']:g} ({part_longer('Diabetes'):.1%}) as ε falls from 8 to 0.5 on Diabetes", longer_in_table("Diabetes"), lambda rows: grows(rows, "Diabetes", EPSILONS[0]), TABLE),
    Claim("Section 7: hours grow in proportion to the noise", proportion_in_table(), proportional, TABLE),
    Claim("SPGC communicates 72 times as long as LDP on MNIST", times_ldp("MNIST"), lambda rows: over_ldp(rows, "MNIST"), TABLE),
    Claim("SPGC communicates 98 times as long as LDP on Cancer", times_ldp("Cancer"), lambda rows: over_ldp(rows, "Cancer"), TABLE),
    Claim("SPGC communicates 21 times as long as LDP on Diabetes", times_ldp("Diabetes"), lambda rows: over_ldp(rows, "Diabetes"), TABLE),
    Claim("More than 98% of a training on Cancer is communication", "98%", communicates, TABLE),
)
# fmt: on
