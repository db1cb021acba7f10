"""Draws error of ratings and recall against epsilon, a line for each method; and one round, drawn from its
transcript."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from dpaudit.personalization.als import least_squares, steps
from dpaudit.personalization.als.layout import arranged
from dpaudit.personalization.als.steps import Model, Prior, Step
from dpaudit.personalization.boundary.aggregator import run
from dpaudit.personalization.boundary.messages import terms
from dpaudit.personalization.boundary.processes import memoryless
from dpaudit.report.boundary_figure import round_figure
from experiments.pages import select
from experiments.paper004.population import PLACES, population

Rows = Sequence[dict[str, Any]]
COLOURS = ("#888888", "#0072B2", "#D55E00", "#009E73")
PANELS = {"rmse": "RMSE of held-out ratings", "recall@20": "recall@20"}


def utility_figure(rows: Rows) -> Figure:
    """Returns a panel for each measure; no privacy at the right end."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axes, (quantity, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        own = select(rows, quantity)
        names = list(dict.fromkeys(row["setting"]["method"] for row in own))
        ticks = [row["setting"]["epsilon"] for row in select(rows, quantity, method=names[0])]
        for name, colour in zip(names, COLOURS, strict=False):
            found = select(rows, quantity, method=name)
            middle = [row["ours"] for row in found]
            ends = [
                [row["ours"] - row["ours_low"] for row in found],
                [row["ours_high"] - row["ours"] for row in found],
            ]
            places = [ticks.index(row["setting"]["epsilon"]) for row in found]
            axes.errorbar(places, middle, ends, color=colour, label=name, linewidth=1.2, capsize=2, marker="o")
        axes.set_xticks(range(len(ticks)), ["none" if tick is None else f"{tick:g}" for tick in ticks])
        axes.set(xlabel="ε of all that was released, δ = 0.00001", ylabel=label)
        axes.legend(fontsize=7)
    return figure


def transcript_figure() -> Figure:
    """Who sees what of a round of private alternating least squares: 200 made-up users, 40 items, 4 factors."""
    train, _ = population(0, users=200, items=40)
    (users,) = arranged(train, buckets=[PLACES])
    rank, ones = 4, jnp.ones((40, 1))
    prior = Prior(jnp.full(rank, 0.1), 5.0, 0.1)
    step = Step(1.2, 1.5, steps.adaptive(0.15))
    protocol = least_squares.alternating(
        step, noise_multiplier=2.0, features=ones, prior=prior, name="sums of statistics"
    )
    factors = 0.3 * jax.random.normal(jax.random.key(0), (40, rank))
    precision = jnp.array([5.0] + rank * [10.0])
    model = Model(ones, factors, jnp.zeros(40), jnp.array([3.5] + rank * [0.0]), precision)
    memory = memoryless()
    _, _, transcript = run(jax.random.key(1), protocol, model, memory, (users,), 3)
    one_bucket = protocol._replace(devices=protocol.devices.devices)
    return round_figure(terms(one_bucket, model, memory, users), transcript, delta=1e-5)
