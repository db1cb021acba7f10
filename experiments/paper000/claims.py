"""Judges the paper's claims by the result rows."""

import math

from experiments.pages import Claim, Rows, Verdict, from_interval, interval, number, only, ranged, select, values
from experiments.paper000.published import EPSILONS, TABLE_1

PROMISE = EPSILONS[-1]
COMMAND = "ldp_client_audit"
NEAR = 0.1  # points of accuracy
HARD = ("zero_against_large", "watermark")  # the pairs of Section 4.1


def at_promise(rows: Rows, quantity: str, *crafts: str) -> Rows:
    """Returns the rows of some settings at the largest epsilon, of all data sets."""
    return [row for row in select(rows, quantity, epsilon=PROMISE) if row["setting"]["craft"] in crafts]


def span(rows: Rows) -> str:
    """From the smallest of several numbers to the largest, with the ends of their bounds."""
    ours = sorted(row["ours"] for row in rows)
    low, high = min(row["ours_low"] for row in rows), max(row["ours_high"] for row in rows)
    return f"{number(ours[0])} to {number(ours[-1])} [{number(low)}, {number(high)}]"


def scale(rows: Rows) -> str:
    return f"{', '.join(values(rows, 'dataset'))}: {rows[0]['scale'].split(', d')[0]} a setting"


def below_promise(rows: Rows) -> Verdict:
    own = at_promise(rows, "epsilon_hat", "benign")
    return Verdict(all(row["ours_high"] < PROMISE for row in own), span(own), scale(own))


def below_promise_under_the_optimal_test(rows: Rows) -> Verdict:
    own = at_promise(rows, "epsilon_optimal", "benign")
    each = "; ".join(f"{row['setting']['dataset']} {number(row['ours'])} {interval(row)}" for row in own)
    return Verdict(all(row["ours_high"] < PROMISE for row in own), each, scale(own))


def nearer(closer: str, further: str, rows: Rows) -> Verdict:
    """Tells whether one setting shows more than another on every data set."""
    apart, told = [], []
    for name in values(at_promise(rows, "epsilon_hat", closer), "dataset"):
        more, less = (only(rows, "epsilon_hat", craft=c, dataset=name, epsilon=PROMISE) for c in (closer, further))
        apart.append((more["ours_low"] - less["ours_high"], more["ours_high"] - less["ours_low"]))
        told.append(f"{number(more['ours'])} against {number(less['ours'])}")
    holds = True if min(low for low, _ in apart) > 0 else False if min(high for _, high in apart) < 0 else None
    return Verdict(holds, "; ".join(told), scale(at_promise(rows, "epsilon_hat", closer)))


def stronger_with_the_server(rows: Rows) -> Verdict:
    """Tells whether the spoiled model shows more than the honest one, where both negate the gradient."""
    more, less = (
        only(rows, "accuracy_percent", dataset="mnist", craft=craft, epsilon=PROMISE)
        for craft in ("collusion", "gradient_flip")
    )
    low, high = more["ours_low"] - less["ours_high"], more["ours_high"] - less["ours_low"]
    ours = f"{number(more['ours'], 1)}% against {number(less['ours'], 1)}%"
    return Verdict(from_interval(low, high), ours, more["scale"])


def reached(rows: Rows) -> Verdict:
    own = at_promise(rows, "epsilon_hat", "collusion", "dummy")
    return Verdict(all(row["ours_low"] <= PROMISE <= row["ours_high"] for row in own), span(own), scale(own))


def flipped(rows: Rows) -> Verdict:
    """Tells whether a negated gradient shows the paper's ε; open where another L than that of Table 1 could show it.

    The paper does not give L. Where both norms reach it, a share p of right guesses shows the log odds ln(p/(1-p)).
    """
    row = only(rows, "epsilon_hat", dataset="mnist", craft="gradient_flip", epsilon=PROMISE)
    steps = row["setting"]["pretraining_steps"]
    swept = select(rows, "sweep_accuracy_percent", dataset="mnist", craft="gradient_flip", steps=steps)
    most = max(swept, key=lambda other: other["ours"])
    reach = math.log(most["ours"] / (100 - most["ours"]))
    inside = row["ours_low"] <= row["paper_value"] <= row["ours_high"]
    ours = f"{ranged(row)} at the L that fits Table 1, {row['setting']['clip_norm']:g}; at L = {most['setting']['clip_norm']:g}"
    ours += f" {number(most['ours'], 1)}% right guesses, log odds {number(reach)}"
    holds = True if inside else None if reach >= row["paper_value"] else False
    return Verdict(holds, ours, f"mnist: {row['scale']}; {most['scale']}")


def nearer_on_mnist(rows: Rows) -> Verdict:
    """Tells whether a negated gradient shows more on MNIST than on all other data, at the L that fits Table 1; not
    where it shows less than on all."""
    own = {row["setting"]["dataset"]: row for row in at_promise(rows, "epsilon_hat", "gradient_flip")}
    others = [row for name, row in own.items() if name != "mnist"]
    low = own["mnist"]["ours_low"] - max(row["ours_high"] for row in others)
    high = own["mnist"]["ours_high"] - min(row["ours_low"] for row in others)
    ours = f"{number(own['mnist']['ours'])} against {span(others)}, L = {own['mnist']['setting']['clip_norm']:g}"
    return Verdict(from_interval(low, high), ours, scale(list(own.values())))


def hard_to_tell(rows: Rows) -> Verdict:
    """Tells whether neither of Section 4.1's pairs shows more than two images do, by ε and by right guesses; not where
    both pairs do by both, on all data."""
    apart = []
    for name in values(at_promise(rows, "epsilon_hat", "benign"), "dataset"):
        for quantity in ("epsilon_hat", "accuracy_percent"):
            at = {"dataset": name, "epsilon": PROMISE}
            images, *pairs = (only(rows, quantity, craft=craft, **at) for craft in ("benign", *HARD))
            apart += [
                (each["ours_low"] - images["ours_high"], each["ours_high"] - images["ours_low"]) for each in pairs
            ]
    holds = False if min(low for low, _ in apart) > 0 else True if max(high for _, high in apart) < 0 else None
    (pairs, right), (images, others) = (
        (at_promise(rows, "epsilon_hat", *of), at_promise(rows, "accuracy_percent", *of)) for of in (HARD, ("benign",))
    )
    ours = f"ε {span(pairs)}, two images {span(images)}; right guesses {_ends(right)}%, two images {_ends(others)}%"
    return Verdict(holds, ours, scale(pairs))


def _ends(rows: Rows) -> str:
    found = sorted(row["ours"] for row in rows)
    return f"{number(found[0], 1)} to {number(found[-1], 1)}"


def table_1(rows: Rows) -> Verdict:
    own = [row for row in select(rows, "accuracy_percent", dataset="mnist") if row["setting"]["craft"] in TABLE_1]
    inside = sum(row["ours_low"] <= row["paper_value"] <= row["ours_high"] for row in own)
    return Verdict(inside == len(own), f"{inside} of {len(own)} within two standard deviations", own[0]["scale"])


def worst_pair(rows: Rows) -> Verdict:
    """Tells whether the ascent ends at opposite gradients, as near to the limit as it can be and not above."""
    right, angle = only(rows, "worst_pair_accuracy_percent"), only(rows, "worst_pair_angle_degrees")
    long = only(rows, "worst_pair_norm")["ours"] >= angle["setting"]["clip_norm"]
    holds = 0 <= right["ours_high"] - right["ours"] < NEAR and angle["ours_low"] > 175 and long
    ours = f"{number(right['ours'])}% of at most {number(right['ours_high'])}%, {number(angle['ours_low'], 1)} degrees apart"
    return Verdict(holds, ours, right["scale"])


def opposite_labels(rows: Rows) -> Verdict:
    """Tells whether training turns the gradients under two labels away from each other, and how far."""
    own = sorted(select(rows, "angle_degrees", craft="label_flip"), key=lambda row: row["setting"]["steps"])
    first, last = own[0], max(own, key=lambda row: row["ours"])
    ours = f"from {number(first['ours'], 0)} to at most {number(last['ours'], 0)} {interval(last, 0)} degrees"
    return Verdict(last["ours"] > 150, ours, first["scale"])


def two_classes(between: str, rows: Rows) -> Verdict:
    """Tells whether a pair of a two-class network points opposite ways after every pre-training."""
    own = sorted(
        select(rows, "two_class_angle_degrees", between=between), key=lambda row: float(row["setting"]["steps"])
    )
    angles = sorted(row["ours"] for row in own)
    ours = f"{number(angles[0], 0)} to {number(angles[-1], 0)} degrees, after {own[0]['setting']['steps']} to "
    return Verdict(angles[0] > 175, f"{ours}{own[-1]['setting']['steps']} steps", own[0]["scale"])


# fmt: off
CLAIMS = (
    Claim("Observation 1: without manipulation, a client's gradient is protected better than promised (cosine rule)", "0.94 of 4", below_promise, COMMAND),
    Claim("The same, against the most powerful test of a release", "", below_promise_under_the_optimal_test, COMMAND),
    Claim("Observation 2: where a gradient can be manipulated (dummy, or colluding with the server), the promise is reached on every data set", "4", reached, COMMAND),
    Claim("Section 6.1.3: a negated gradient alone nearly reaches the promise on MNIST", "3.99 of 4", flipped, COMMAND),
    Claim("And comes nearer to it there than on the other data sets", "not fully", nearer_on_mnist, COMMAND),
    Claim("A negated gradient shows more than another label", "3.99 against 2.47", lambda rows: nearer("gradient_flip", "label_flip", rows), COMMAND),
    Claim("Observation 3: collusion with the server makes the observer stronger than a negated gradient alone (MNIST)", "98.2% against 93.6%", stronger_with_the_server, COMMAND),
    Claim("Observation 4: another label on the same image shows more than another image", "2.47 against 0.94", lambda rows: nearer("label_flip", "benign", rows), COMMAND),
    Claim("Section 4.1: a zero gradient is hard to tell from a large one, and from one with a mark in one coordinate (no easier than two images)", "", hard_to_tell, COMMAND),
    Claim("Table 1: right guesses on MNIST in five settings at four epsilons", "20 cells", table_1, COMMAND),
    Claim("Proposition 1: opposite gradients of norm at least L are the worst pair for the cosine rule", "", worst_pair, COMMAND),
    Claim("Proposition 2: after training, gradients under two labels of ten point opposite ways", "180 degrees", opposite_labels, COMMAND),
    Claim("Proposition 2 in the case that its proof covers: two classes", "180 degrees", lambda rows: two_classes("true", rows), COMMAND),
    Claim("Eqs. (4) and (5) of that proof point opposite ways", "180 degrees", lambda rows: two_classes("equations", rows), COMMAND),
    Claim("Training leads to opposite weights of the two logits", "180 degrees", lambda rows: two_classes("weights", rows), COMMAND),
)
# fmt: on
