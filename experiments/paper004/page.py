"""Makes the tables, figures and facts of this page."""

from pathlib import Path
from typing import Any

import dp_accounting

from experiments import pages
from experiments.pages import Fact, Rows, broken, fact, interval, number, only, ranged, select, table
from experiments.paper004.claims import CLAIMS as CLAIMS
from experiments.paper004.claims import NEAR
from experiments.paper004.federated import LEARNING_RATES
from experiments.paper004.figures import transcript_figure, utility_figure
from experiments.paper004.methods import delta_for
from experiments.paper004.page_crossover import FAR_BELOW
from experiments.paper004.page_crossover import ahead_from as ahead_from
from experiments.paper004.page_crossover import bring_and_cost as bring_and_cost
from experiments.paper004.page_crossover import crossover as crossover
from experiments.paper004.page_crossover import crossover_run as crossover_run
from experiments.paper004.page_crossover import factors_pay as factors_pay
from experiments.paper004.page_crossover import features_alone as features_alone
from experiments.paper004.page_crossover import lowest as lowest
from experiments.paper004.page_crossover import many_are_enough as many_are_enough
from experiments.paper004.page_crossover import methods_compared as methods_compared
from experiments.paper004.page_crossover import noise_costs as noise_costs
from experiments.paper004.page_crossover import other_users as other_users
from experiments.paper004.page_crossover import rank_chosen as rank_chosen
from experiments.paper004.page_crossover import repeated as repeated
from experiments.paper004.page_fits import fits_in_turn as fits_in_turn
from experiments.paper004.page_fits import fits_memory as fits_memory
from experiments.paper004.page_fits import whole_fits as whole_fits
from experiments.paper004.page_movielens import movielens_better as movielens_better
from experiments.paper004.page_movielens import movielens_run as movielens_run
from experiments.paper004.page_movielens import one_release as one_release
from experiments.paper004.page_movielens import public_alone as public_alone
from experiments.paper004.page_peers import gradient_baseline as gradient_baseline
from experiments.paper004.page_peers import noisy_adam as noisy_adam
from experiments.paper004.page_peers import peer_dpals as peer_dpals
from experiments.paper004.page_peers import peers as peers
from experiments.paper004.page_rankings import drowned as drowned
from experiments.paper004.page_rankings import ranking_gains as ranking_gains
from experiments.paper004.page_rankings import rankings as rankings
from experiments.paper004.run import mu_of

CHOOSING = ("rmse", "recall@20", "jester rmse", "movielens rmse")  # whose rows say among how many settings they chose
FILES = ("personalization*.json",)


def draw(rows: Rows, folder: Path) -> None:
    pages.save(transcript_figure(), folder / "personalization_round.png")
    utility_figure(rows).savefig(folder / "personalization_utility.png", dpi=110)


def what_was_run(rows: Rows) -> Fact:
    row = select(rows, "rmse")[0]
    return fact(True, scale=row["scale"], delta=row["setting"]["delta"])


def utility(rows: Rows) -> str:
    lines = []
    for quantity in ("rmse", "recall@20"):
        found = select(rows, quantity)
        names = list(dict.fromkeys(row["setting"]["method"] for row in found))
        for row in sorted(found, key=lambda row: (names.index(row["setting"]["method"]), _loss(row))):
            at = row["setting"]
            cells = [
                number(infinite(at["epsilon"]), 0),
                ranged(row, 3),
                settled(row),
                choice(at["choice"]),
                number(at["epsilon_with_choosing"], 1),
            ]
            lines.append([f"{quantity}: {at['method']}", *cells])
    return table(["measure: method", "ε", "value", "settings", "chosen", "ε with choosing"], lines)


def _loss(row: dict[str, Any]) -> float:
    epsilon = row["setting"]["epsilon"]
    return float("inf") if epsilon is None else epsilon


def settled(row: dict[str, Any]) -> str:
    """Returns how a row's settings came about: ``default``, none was chosen; ``tuned``, and choosing is paid for, by
    public users or in the epsilon beside it; or ``oracle``, chosen by data for which nothing is paid."""
    at = row["setting"]
    if row["quantity"] not in CHOOSING:
        return "oracle"
    if at.get("candidates", 1) == 1:
        return "default"
    paid = at["epsilon"] is None or at.get("public_users") or at.get("epsilon_with_choosing") is not None
    return "tuned" if paid else "oracle"


def infinite(epsilon: float | None) -> float | str:
    return "inf" if epsilon is None else epsilon


def choice(chosen: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in chosen.items()) or "–"


def on_devices(rows: Rows) -> Fact:
    """At the smallest epsilon no factors were chosen; public features add more than what else a device solves for."""
    bias, plain, public = (
        only(rows, "rmse", method=name, epsilon=1.0)
        for name in ("item bias", "alternating", "alternating, public features")
    )
    device, features = bias["ours"] - plain["ours"], plain["ours"] - public["ours"]
    without = all(row["setting"]["choice"]["rank"] == 0 for row in (plain, public))
    return fact(without and device < features, device=device, features=features)


def restated(at: dict[str, Any]) -> float | None:
    """Returns the epsilon of a row's Gaussian at a delta below 1/users, exactly, at which the row may not state it."""
    if at["epsilon"] is None:
        return None
    return dp_accounting.get_epsilon_gaussian(1 / mu_of(at["epsilon"], at["delta"]), delta_for(at["users"]))


def population(rows: Rows) -> str:
    lines = []
    for row in select(rows, "population rmse"):
        at = row["setting"]
        cells = [number(infinite(restated(at)), 1), number(row["ours"], 4), settled(row), number(at["fit_seconds"], 0)]
        lines.append([at["method"], *cells])
    return table(["method", "ε", "RMSE", "settings", "seconds"], lines)


def many_users(rows: Rows) -> Fact:
    """Where users are many, factors pay at every epsilon."""
    found = select(rows, "population rmse")
    pairs = [
        (row["ours"], only(found, "population rmse", method="item bias", epsilon=row["setting"]["epsilon"])["ours"])
        for row in select(found, "population rmse", method="alternating")
    ]
    return fact(
        all(ours < bias for ours, bias in pairs),
        scale=found[0]["scale"],
        delta=delta_for(found[0]["setting"]["users"]),
        least=min(bias - ours for ours, bias in pairs),
    )


def jester(rows: Rows) -> str:
    lines = []
    for row in select(rows, "jester rmse"):
        at = row["setting"]
        cells = [number(infinite(at["epsilon"]), 0), ranged(row, 3), settled(row), choice(at["choice"])]
        lines.append([at["method"], *cells])
    return table(["method", "ε", "RMSE", "settings", "chosen by public users"], lines)


def jester_run(rows: Rows) -> Fact:
    at = select(rows, "jester rmse")[0]
    asked = at["setting"]
    private = _before(" private users", at["scale"])
    product = private * asked["delta"]
    told = {"public": asked["public_users"], "most": asked["candidates"], "delta": asked["delta"]}
    return fact(product > FAR_BELOW, scale=at["scale"], private=private, product=product, **told)


def jester_factors(rows: Rows) -> Fact:
    """Factors pay at every epsilon, whichever way they are learned."""
    found = select(rows, "jester rmse")
    gains = [
        only(found, "jester rmse", method="item bias", epsilon=row["setting"]["epsilon"])["ours"] - row["ours"]
        for row in found
        if row["setting"]["method"] != "item bias"
    ]
    return fact(min(gains) > 0, least=min(gains), most=max(gains))


def jester_moments(rows: Rows) -> Fact:
    """Second moments have the lowest error at every epsilon."""
    found = select(rows, "jester rmse")
    ours = [row for row in found if row["setting"]["method"] == "second moments"]
    leads = [
        min(
            other["ours"]
            for other in select(found, "jester rmse", epsilon=row["setting"]["epsilon"])
            if other["setting"]["method"] != "second moments"
        )
        - row["ours"]
        for row in ours
    ]
    return fact(min(leads) > 0, least=min(leads), most=max(leads))


def movielens(rows: Rows) -> str:
    lines = []
    for row in select(rows, "movielens without release"):
        lines.append([row["setting"]["method"], "–", ranged(row, 3), "–", "–"])
    for row in select(rows, "movielens rmse"):
        at = row["setting"]
        lines.append([at["method"], number(at["epsilon"], 0), ranged(row, 3), settled(row), choice(at["choice"])])
    return table(["method", "ε", "RMSE", "settings", "chosen by public users"], lines)


def federated(rows: Rows) -> str:
    lines = []
    for row in select(rows, "federated accuracy"):
        at = row["setting"]
        cells = [
            number(at["epsilon"], 0),
            number(at["noise_multiplier"]),
            f"{100 * row['ours']:.1f}% [{100 * row['ours_low']:.1f}]",
        ]
        lines.append([at["variant"], *cells, settled(row), f"{at['learning_rate']:g}"])
    return table(["noise", "ε", "noise multiplier", "accuracy [worst rate]", "settings", "learning rate"], lines)


def federated_run(rows: Rows) -> Fact:
    found = select(rows, "federated accuracy")
    ((scale, delta),) = {(row["scale"], row["setting"]["delta"]) for row in found}
    product = _before(" users", scale) * delta
    rates = ", ".join(f"{rate:g}" for rate in LEARNING_RATES)
    return fact(product > FAR_BELOW, scale=scale, delta=delta, product=product, rates=rates)


def _before(words: str, scale: str) -> int:
    """Returns the number before these words of what was run."""
    return int(scale.partition(words)[0].split()[-1].replace(",", ""))


def audited(rows: Rows) -> Fact:
    at = select(rows, "mu")[0]["setting"]
    return fact(True, delta=at["delta"], confidence=at["confidence"])


def phases(rows: Rows) -> str:
    return audits(rows, "mu", "phase")


def protocols(rows: Rows) -> str:
    return audits(rows, "protocol mu", "protocol")


def audits(rows: Rows, quantity: str, of: str) -> str:
    """Tabulates accounted against audited mu and epsilon, a line for each ``of``."""
    lines = []
    for row in select(rows, quantity):
        at = row["setting"]
        bounds = f"[{number(at['epsilon_lower'])}, {number(at['epsilon_upper'])}]"
        cells = [at["rounds"], number(at["accounted"], 4), ranged(row, 4), number(at["claimed"]), bounds]
        lines.append([at[of], *cells, row["scale"]])
    return table([of, "rounds", "accounted μ", "audited μ", "accounted ε", "audited ε", "run"], lines)


def documented(rows: Rows) -> Fact:
    """Every protocol of the documentation shows what is accounted, and no more."""
    found = select(rows, "protocol mu")
    off = max(abs(row["ours"] / row["setting"]["accounted"] - 1) for row in found)
    at = found[0]["setting"]
    return fact(off < NEAR, off=off, number=len(found), delta=at["delta"], confidence=at["confidence"])


def protocol_faults(rows: Rows) -> str:
    lines = []
    for row in select(rows, "protocol fault"):
        at = row["setting"]
        if at["verdict"] == "refused":
            cells = ["–", "–", "refused by the accountant"]
        else:
            violated = at["verdict"] == "violation"
            cells = [number(at["claimed"]), broken(row, at["claimed"]) if violated else interval(row), at["verdict"]]
        lines.append([at["fault"], *cells, row["scale"]])
    return table(["fault", "claimed ε", "audited ε", "verdict", "run"], lines)


def faults(rows: Rows) -> str:
    lines = []
    for row in select(rows, "fault"):
        at = row["setting"]
        bounds = broken(row, at["claimed"]) if at["verdict"] == "violation" else interval(row)
        lines.append([at["fault"], f"{at['claimed']:.2f}", bounds, number(at["true"]), at["verdict"], row["scale"]])
    return table(["fault", "claimed ε", "audited ε", "true ε", "verdict", "run"], lines)
