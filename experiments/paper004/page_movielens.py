"""Makes the facts on MovieLens-100K with settings that public users choose."""

from collections.abc import Iterable
from typing import Any

from experiments.pages import Fact, Rows, fact, only, select
from experiments.paper004.movielens import ALTERNATING, BEGUN, RELEASE, TASTES
from experiments.paper004.page_peers import ADAM, STEPS


def movielens_run(rows: Rows) -> Fact:
    row = select(rows, "movielens rmse")[0]
    at = row["setting"]
    return fact(True, scale=row["scale"], public=at["public_users"], most=at["candidates"], delta=at["delta"])


def movielens_better(rows: Rows) -> Fact:
    """Alternating minimisation is below its rows whose choosing is not paid for, at every epsilon."""
    leads = [
        only(rows, "rmse", method=ALTERNATING, epsilon=_loss(row))["ours"] - row["ours"]
        for row in select(rows, "movielens rmse", method=ALTERNATING)
    ]
    return fact(min(leads) > 0, least=min(leads))


def one_release(rows: Rows) -> Fact:
    """One release is below every other method at every epsilon, and lower again with the tastes of public users."""
    found, tastes = _released(rows, RELEASE), _released(rows, TASTES)
    leads = [
        only(rows, "movielens rmse", method=ALTERNATING, epsilon=_loss(row))["ours"] - row["ours"] for row in found
    ]
    others = {
        name: [only(rows, "rmse", method=method, epsilon=_loss(row)) for row in found]
        for name, method in (("above", ALTERNATING), ("steps", STEPS), ("adam", ADAM))
    }
    holds = min(leads) > 0 and all(
        row["ours"] < other["ours"] for own in others.values() for row, other in zip(found, own, strict=True)
    )
    holds &= all(own["ours"] < row["ours"] for own, row in zip(tastes, found, strict=True))
    closest, ahead = (
        min(other["ours"] - row["ours"] for own in others.values() for row, other in zip(ours, own, strict=True))
        for ours in (found, tastes)
    )
    told = {"closest": closest, "ahead": ahead} | {name: _values(own) for name, own in others.items()}
    told |= {"values": _values(found), "tastes": _values(tastes)}
    return fact(holds, least=min(leads), most=max(leads), epsilons=_epsilons(found), **told)


def public_alone(rows: Rows) -> Fact:
    """Public users' ratings are worth more than one release without them at the smallest epsilon, and less at the
    largest; begun there, one release is below both at every epsilon."""
    (bare,) = select(rows, "movielens without release")
    without, begun = _released(rows, TASTES), _released(rows, BEGUN)
    passing = [row["ours"] < bare["ours"] for row in without]
    holds = passing[-1] > passing[0] and sorted(passing) == passing
    holds &= all(own["ours"] < min(row["ours"], bare["ours"]) for own, row in zip(begun, without, strict=True))
    first = _epsilons(without[passing.index(True) :][:1]) if any(passing) else ""
    return fact(holds, alone=bare["ours"], passes=f"from ε = {first} on", values=_values(begun))


def _released(rows: Rows, method: str) -> list[dict[str, Any]]:
    return sorted(select(rows, "movielens rmse", method=method), key=_loss)


def _values(found: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"{row['ours']:.3f}" for row in found)


def _epsilons(found: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"{_loss(row):g}" for row in found)


def _loss(row: dict[str, Any]) -> float:
    return row["setting"]["epsilon"]
