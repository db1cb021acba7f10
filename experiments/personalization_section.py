"""The part of experiments/README.md that tells of paper 004."""

from collections.abc import Iterable, Sequence
from typing import Any

from dpaudit.report.figures import save_png
from experiments.common import FIGURES
from experiments.markdown import number, ranged, select, table
from experiments.personalization_federated import LEARNING_RATES
from experiments.personalization_figures import transcript_figure, utility_figure

Rows = Sequence[dict[str, Any]]
PUBLISHED = (
    "Published, on other data: alternating least squares without privacy reaches an RMSE of 0.7772 on MovieLens-10M, "
    "private alternating minimisation with gradient steps for the items 0.8991 at ε = 1 there; recall@20 without privacy "
    "is 0.3631 on MovieLens-20M. On MovieLens-100K, one 80/10/10 split, measured before this project's methods existed: "
    "user means 1.036, alternating least squares without privacy 0.936; item bias with user means 1.023 / 0.989 / 0.981 / "
    "0.977 and private alternating least squares of rank 2 1.033 / 0.998 / 0.979 / 0.968 at ε = 1 / 5 / 10 / 20.\n"
)


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order; the figure is drawn on the way."""
    yield "## Paper 004: on-device personalization\n"
    yield "Command: `python -m experiments.personalization`, then `make results`.\n"
    save_png(transcript_figure(), FIGURES / "personalization_round.png")
    yield (
        "One round of private alternating least squares, drawn from its protocol and its transcript (200 made-up users, 40 "
        "items): only the sums, with their noise, reach the server, and a device's request and slice have the same length "
        "whatever it asks for.\n"
    )
    yield "![Who sees what](figures/personalization_round.png)\n"
    if select(rows, "rmse"):
        utility_figure(rows).savefig(FIGURES / "personalization_utility.png", dpi=110)
        yield from _utility(rows)
    yield from _population(select(rows, "population rmse"))
    yield from _federated(select(rows, "federated accuracy"))


def _utility(rows: Rows) -> Iterable[str]:
    one = select(rows, "rmse")[0]
    yield (
        f"{one['scale']}. Mean [smallest, largest] over splits of the users' ratings into 80% that devices hold, 10% and "
        "10% held out, which are scored. ε is of all releases of one model together, read off its transcript, for adding or "
        "removing one user, δ = 0.00001. A tenth of the users, who are neither learned from nor scored, choose each "
        "method's settings among its candidates; the last column is ε where all candidates' models are counted as "
        "released too, although nobody but the chooser saw them (not computed for gradient steps). What a device solves for (its user's intercept, taste in "
        "public features, weight of the item bias, factor) is never released and costs nothing: most of what is gained "
        "over item bias, whose users have an intercept alone, is gained there.\n"
    )
    yield "![Utility by epsilon](figures/personalization_utility.png)\n"
    for quantity, title, digits in (("rmse", "RMSE", 3), ("recall@20", "recall@20", 3)):
        lines = [
            [
                row["setting"]["method"],
                number(_inf(row["setting"]["epsilon"]), 0),
                ranged(row, digits),
                _choice(row["setting"]["choice"]),
                number(row["setting"]["epsilon_with_choosing"], 1),
            ]
            for row in select(rows, quantity)
        ]
        yield table(["method", "ε", title, "chosen", "ε with choosing"], lines)
    yield PUBLISHED


def _population(rows: Rows) -> Iterable[str]:
    if not rows:
        return
    yield (
        f"**A made-up population** ({rows[0]['scale']}): ratings with a noise of 0.5, which nobody can predict, and tastes "
        "of rank 4. Settings are the same at every ε, the better of a few tried at 5. Seconds are of the whole fit on two CPU cores, compilation and accounting "
        "included.\n"
    )
    lines = [
        [
            row["setting"]["method"],
            number(_inf(row["setting"]["epsilon"]), 0),
            number(row["ours"], 4),
            number(row["setting"]["fit_seconds"], 0),
        ]
        for row in rows
    ]
    yield table(["method", "ε", "RMSE", "seconds, beside other work"], lines)


def _federated(rows: Rows) -> Iterable[str]:
    if not rows:
        return
    rates = ", ".join(f"{rate:g}" for rate in LEARNING_RATES)
    yield (
        f"**User-level training on MNIST** ({rows[0]['scale']}; paper 002's network): DP-SGD, whose users are drawn in "
        "secret, and DP-FTRL with each kind of noise, whose users come in epochs that may be public. One training of each "
        f"learning rate ({rates}), no momentum; the best accuracy on the test images [the worst rate's], so a "
        "comparison of noises and no estimate of what a careful user would reach. The best rate is mostly the largest.\n"
    )
    lines = [
        [
            row["setting"]["variant"],
            number(row["setting"]["epsilon"], 0),
            number(row["setting"]["noise_multiplier"]),
            f"{100 * row['ours']:.1f}% [{100 * row['ours_low']:.1f}]",
            f"{row['setting']['learning_rate']:g}",
        ]
        for row in rows
    ]
    yield table(["noise", "ε", "noise multiplier", "accuracy", "learning rate"], lines)


def _inf(epsilon: float | None) -> float | str:
    return "inf" if epsilon is None else epsilon


def _choice(choice: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in choice.items()) or "–"
