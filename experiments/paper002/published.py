"""Holds the numbers that the paper prints, and its findings as comparisons between runs."""

from typing import NamedTuple

ROUNDS, CLIENTS_PER_ROUND, CLIENTS, TRIALS = 10_000, 1_000, 10_000_000, 5
EPSILON, DELTA = 8.0, 1e-7  # of a message
ACCURACY = {  # Tables 1 and 2: mean and standard deviation over five trials, percent
    "clip0.01": (92.98, 0.34),
    "clip0.05": (92.03, 0.33),
    "0.05to0.01(20%)": (93.75, 0.09),
    "0.05to0.01(60%)": (93.35, 0.17),
    "poly(0.01)0.5": (92.16, 0.20),
    "poly(0.01)1.0": (91.40, 0.29),
    "poly(0.01)2.0": (89.65, 0.20),
    "poly(0.05)0.5": (93.86, 0.08),
    "poly(0.05)1.0": (94.04, 0.24),
    "poly(0.05)2.0": (93.56, 0.11),
}
QUANTILE_EPSILON = 0.006  # of all releases of the quantile rule, at DELTA

FINDINGS = {  # Section 1
    1: "Early on, a fairly large C learns faster than a small one.",
    2: "Lowering C while learning goes well keeps noise from driving the loss up, and learning goes on.",
    3: "Where C starts small, raising it makes learning faster.",
    4: "Policies and adaptive rules that were not made for local privacy may not work under it.",
}


class Comparison(NamedTuple):
    """Every one of ``larger`` is above every one of ``smaller``."""

    finding: int | str  # of FINDINGS, or the section that says so, or that asks
    text: str  # the claim in words
    quantity: str  # "accuracy" (percent), "loss", "norm" (mean, before clipping) or "clip_norm"
    at: float  # share of the rounds
    larger: tuple[str, ...]  # larger, smaller: settings
    smaller: tuple[str, ...]


def place(comparison: Comparison) -> str:
    """Where the paper says so, or asks."""
    if of_ours(comparison):
        return "Ours"
    return f"{'Finding' if comparison.finding in FINDINGS else 'Section'} {comparison.finding}"


def of_ours(comparison: Comparison) -> bool:
    """Tells whether we ask it and not the paper: of rules that are not its own, or by a threshold that it does not
    name."""
    return bool(set(comparison.larger) & set(BUDGETS)) or comparison.quantity == "clip_norm"


LOWERED = ("0.05to0.01(20%)", "0.05to0.01(60%)", "poly(0.05)0.5", "poly(0.05)1.0", "poly(0.05)2.0")
ADAPTIVE = ("quantile(0.01)10%", "quantile(0.01)50%", "adaptive0.01", "adaptive0.05")
BUDGETS = ("budget(0.01)", "budget(0.05)", "budget(1.0)")  # not the paper's
LOWERED_MORE = ("poly(0.01)0.5", "poly(0.01)1.0", "poly(0.01)2.0")
COMPARISONS = (
    Comparison(1, "early on, C = 0.05 is more accurate than 0.01", "accuracy", 0.1, ("clip0.05",), ("clip0.01",)),
    Comparison(1, "early on, C = 0.05 has the lower loss", "loss", 0.1, ("clip0.01",), ("clip0.05",)),
    Comparison(
        2, "every way to lower C from 0.05 ends more accurate than 0.05", "accuracy", 1, LOWERED, ("clip0.05",)
    ),
    Comparison(2, "and more accurate than 0.01", "accuracy", 1, LOWERED, ("clip0.01",)),
    Comparison(2, "and with a lower loss than 0.05", "loss", 1, ("clip0.05",), LOWERED),
    Comparison(
        3,
        "soon after its first update (after a fifth of the rounds), adaptive0.01 leads 0.01",
        "accuracy",
        0.2,
        ("adaptive0.01",),
        ("clip0.01",),
    ),
    Comparison(3, "and has the lower loss", "loss", 0.2, ("clip0.01",), ("adaptive0.01",)),
    Comparison(4, "all adaptive rules end less accurate than C = 0.01", "accuracy", 1, ("clip0.01",), ADAPTIVE),
    Comparison(4, "and less accurate than 0.05", "accuracy", 1, ("clip0.05",), ADAPTIVE),
    Comparison(4, "the quantile rules' C ends above 1", "clip_norm", 1, ADAPTIVE[:2], ("clip1.0",)),
    Comparison("4.3", "C = 0.01 ends more accurate than 0.05", "accuracy", 1, ("clip0.01",), ("clip0.05",)),
    Comparison("4.3", "0.05 ends more accurate than 0.1", "accuracy", 1, ("clip0.05",), ("clip0.1",)),
    Comparison("4.3", "0.1 ends more accurate than 0.5 and 1.0", "accuracy", 1, ("clip0.1",), ("clip0.5", "clip1.0")),
    Comparison("4.4", "lowering C from 0.01 ends less accurate than 0.01", "accuracy", 1, ("clip0.01",), LOWERED_MORE),
    Comparison(
        "5",
        "0.01 and 0.05 end with longer gradients than no privacy",
        "norm",
        1,
        ("clip0.01", "clip0.05"),
        ("non-private",),
    ),
    Comparison(
        "5", "switching to 0.01 ends with shorter gradients than 0.05", "norm", 1, ("clip0.05",), ("0.05to0.01(20%)",)
    ),
    *(
        Comparison(
            "6",
            f"{rule} ends more accurate than the paper's best schedule",
            "accuracy",
            1,
            (rule,),
            ("poly(0.05)1.0",),
        )
        for rule in BUDGETS
    ),
    # Fig. 5 (c), then (b). At the end: rows name a claim by its place.
    Comparison(
        "4.4",
        "poly(0.05)0.5 and 1.0 end with a higher loss than 0.05to0.01(20%)",
        "loss",
        1,
        ("poly(0.05)0.5", "poly(0.05)1.0"),
        ("0.05to0.01(20%)",),
    ),
    Comparison(
        "4.4",
        "poly(0.05)2.0 ends with a lower loss than 0.05to0.01(20%)",
        "loss",
        1,
        ("0.05to0.01(20%)",),
        ("poly(0.05)2.0",),
    ),
    Comparison(
        "4.4", "lowering C from 0.01 ends with a higher loss than 0.01", "loss", 1, LOWERED_MORE, ("clip0.01",)
    ),
    # Figs. 7 and 8.
    Comparison(3, "and leads 0.05 as well", "accuracy", 0.2, ("adaptive0.01",), ("clip0.05",)),
    Comparison("4.5", "adaptive0.05 ends with a higher loss than 0.05", "loss", 1, ("adaptive0.05",), ("clip0.05",)),
)


def in_order() -> list[tuple[int, Comparison]]:
    """Returns the comparisons with their numbers, findings first, in the order of the paper."""
    return sorted(enumerate(COMPARISONS), key=lambda each: (each[1].finding not in FINDINGS, str(each[1].finding)))
