"""Lists the figures that `make bench` takes from the benchmarks' rows: ours, a peer's, and their ratio."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Rows = Sequence[dict[str, Any]]
Setting = dict[str, Any]


class Figure(NamedTuple):
    """One line of the table: a setting's text may be a pattern, and of several rows that agree the best is taken.

    A ratio is the quantity and setting of the row that says how many times as good ours is, formed round by round,
    where {ours} and {peer} stand for the sides; without one it is the quotient of the two medians.
    """

    what: str  # in words, with the unit
    quantity: str  # of the rows that it is taken from
    ours: Setting
    peer: Setting | None = None  # None where nothing is compared
    ratio: tuple[str, Setting] | None = None
    package: str = ""  # what the peer is part of, for its version
    more: bool = False  # more is better
    peer_quantity: str = ""  # where it is another


def sides(
    what: str, quantity: str, ratio: str, ours: str, peer: str, setting: Setting, *rest: Any, **more: Any
) -> Figure:
    """Where a row's setting names its side, and a ratio's the peer's, ``of``, and ours, ``to``."""
    both = {"of": "{peer}", "to": "{ours}"} if not more.pop("swapped", False) else {"of": "{ours}", "to": "{peer}"}
    own, other = setting | {"side": ours}, setting | {"side": peer}
    return Figure(what, quantity, own, other, (ratio, setting | both), *rest, **more)


def clipped(network: str, peer: str, package: str = "", batch: int = 256) -> Figure:
    setting = {"network": network, "batch": batch}
    what = f"clipped gradient sum of {network}, batch {batch:,}, seconds"
    return sides(what, "gradient_seconds", "gradient_ratio", "ours, clipped", peer, setting, package)


def trained(network: str, peer: str, package: str = "") -> Figure:
    what, setting = f"networks {network} trained together, an hour", {"network": network}
    more = {"more": True, "swapped": True}
    return sides(what, "networks_per_hour", "networks_ratio", "together", peer, setting, package, **more)


def a_round(peer: str, package: str = "", *, devices: str = ", * devices") -> Figure:
    """Returns a round with one draw of noise for all clients on both sides, ours on a device a core or on one."""
    where = "a device a core" if devices else "one device"
    what = f"a federated round of 1,000 clients, CNN28, one draw of noise, {where}, seconds"
    ours, setting = f"ours, one draw{devices}", {"network": "CNN28"}
    return sides(what, "round_seconds", "round_ratio", ours, f"{peer}, one draw", setting, package)


def dropout(peer: str, package: str = "") -> Figure:
    what, setting = "a dropout sample of CNN32, microseconds", {"network": "CNN32"}
    return sides(what, "sample_microseconds", "sample_ratio", "statistics", peer, setting, package)


def solved(peer: str, package: str) -> Figure:
    what, setting = "exact user solves of rank 32, a second", {"ratings": 20}
    return sides(what, "users_per_second", "solve_ratio", "ours", peer, setting, package, more=True)


def user_sum(network: str, peer: str, package: str = "") -> Figure:
    what, setting = f"user-level clipped sum of {network}, seconds", {"network": network}
    return sides(what, "user_sum_seconds", "user_sum_ratio", "ours", peer, setting, package)


def step(d: int) -> Figure:
    setting = {"mode": "noisy", "d": d, "transfers": "IKNP"}
    return Figure(f"a noisy sum by two servers by a circuit, d = {d:,}, seconds", "step_seconds", setting)


def open_bytes(transfers: str) -> Figure:
    setting = {"mode": "noisy", "d": 30_000, "transfers": transfers + "*"}
    return Figure(f"its bytes a coordinate at d = 30,000, {transfers}", "bytes_a_coordinate", setting)


def noise(what: str, quantity: str) -> Figure:
    """Returns a step of d = 30,000 by transfers alone beside the same by a circuit."""
    by = {"noise": "transfers alone", "transfers": "IKNP"}
    return Figure(f"{what} by transfers alone (peer: by a circuit)", quantity, by, by | {"noise": "circuit"})


def trials(engine: str, against: str, package: str) -> Figure:
    what, setting = "`full` LDP-SGD trials, d = 26,010, a second", {"engine": "full"}
    ratio = ("full_ratio", {"against": against})
    return Figure(what, "full_trials_per_second", setting, {"engine": engine}, ratio, package, more=True)


VMAP, JAX_PRIVACY, TORCH = "vmap(grad) and clip", "jax-privacy, *", "torch"
OPACUS = "Opacus*", "opacus"

FIGURES: dict[str, list[Figure]] = {  # by the part of bench
    "ldp": [
        trials("PyTorch loop*", "PyTorch", TORCH),
        trials("vmap of the mechanism*", "vmap", "jax"),
        Figure("`plane` LDP-SGD trials, million a second", "plane_million_trials_per_second", {}, more=True),
        Figure("2,000,000 trials of the LDP client audit's grid in the plane, seconds", "plane_grid_seconds", {}),
        Figure("the planes of 10,000 pairs of gradients, d = 26,010, seconds", "gradients_seconds", {}),
        Figure("their peak memory, GiB", "gradients_peak_gib", {}),
    ],
    "wide": [
        Figure("100,000 `full` trials, d = 1,000,000, seconds", "wide_seconds", {}),
        Figure("their peak memory, GiB", "wide_peak_gib", {}),
    ],
    "audit": [
        *(
            Figure(
                f"a first audit of 1,000,000 trials, Laplace mechanism, {which}, seconds",
                "audit_seconds",
                {"mechanism": f"*{which}", "attack": "family", "call": "first"},
            )
            for which in ("user", "shipped")
        ),
        Figure("a joint-beta table, milliseconds", "joint_beta_milliseconds", {}),
        Figure(
            "trials until a violation of twice the claim is certain at 99.9%",
            "sequential_trials",
            {},
            {},
            peer_quantity="fixed_trials",
        ),
    ],
    "secure": [
        *map(step, (30_000, 642, 182)),
        *map(open_bytes, ("IKNP", "SoftSpoken")),
        noise("processor seconds of both servers for one at d = 30,000", "noise_seconds"),
        noise("bytes a coordinate", "noise_bytes"),
        Figure("peak memory of server H2, the larger, GiB", "peak_gib", {"server": "h2"}),
        *(
            Figure(f"AND gates {what} on one core, a second", "ands_per_second", {"what": what}, more=True)
            for what in ("garbled", "evaluated")
        ),
        *(
            Figure(
                f"correlated transfers, IKNP {party}, a second",
                "cots_per_second",
                {"transfers": "IKNP", "party": party},
                more=True,
            )
            for party in ("sender", "receiver")
        ),
    ],
    "training": [
        clipped("CNN32", "ours, plain*"),
        clipped("CNN32", "matrix products alone"),
        clipped("CNN32", "flax.linen, plain", "flax"),
        clipped("CNN32", "ours, clipped, a user's network"),
        clipped("CNN32", VMAP, "jax"),
        clipped("CNN32", JAX_PRIVACY, "jax-privacy"),
        clipped("CNN32", "torch, plain", TORCH),
        clipped("CNN32", "torch.func vmap and clip", TORCH),
        clipped("CNN32", "Opacus ghost*", "opacus"),
        clipped("CNN32", "Opacus per-sample*", "opacus"),
        clipped("CNN28", *OPACUS),
        Figure(
            "peak memory of the clipped sum of CNN32 (peer: the whole batch at once), GiB",
            "peak_gib",
            {"side": "ours, clipped"},
            {"side": "ours, plain"},
        ),
        *(
            trained(network, *peer)
            for network in ("CNN8", "CNN32")
            for peer in (("one after another",), ("plain vmap", "jax"), OPACUS)
        ),
    ],
    "federated": [
        *(
            a_round(*peer, devices=devices)
            for devices in (", * devices", "")
            for peer in (("PyTorch vmap", TORCH), ("PyTorch loop", TORCH), ("vmap(grad)", "jax"))
        ),
        Figure(
            "peak memory of a round of 100,000 of 10,000,000 clients, MiB",
            "peak_mib",
            {"clients": "100,000 of 10,000,000"},
            {"clients": "1,000 of 10,000"},
        ),
    ],
    "mc_dropout": [
        dropout("matrix products alone"),
        dropout("with the convolution's patches"),
        dropout("plain vmap", "jax"),
        dropout("torch*", TORCH),
        Figure("best thresholds of 1,000 models, seconds", "attack_seconds", {"shift": 0.0}),
    ],
    "personalization": [
        solved("NumPy loop", "numpy"),
        solved("NumPy, stacked", "numpy"),
        solved("JAX vmap*", "jax"),
        *(user_sum(network, JAX_PRIVACY, "jax-privacy") for network in ("MLP", "FlaxCNN28", "FlaxCNN32")),
    ],
    "scaling": [
        Figure(f"exponent of the time against {name}, at the end", f"{name}: exponent", {"sizes": "end"})
        for name in ("trials", "dimension", "clients", "networks")
    ],
    "gpu": [
        Figure("`full` LDP-SGD trials, d = 26,010, a second", "full_trials_per_second", {"d": 26_010}, more=True),
        *(
            clipped("CNN32", *peer, batch=1_024)
            for peer in (("ours, plain",), ("flax.linen, plain", "flax"), ("torch, plain", TORCH), OPACUS)
        ),
        Figure("10,000 federated rounds, seconds", "run_seconds", {"rounds": 10_000}),
        Figure(
            "MC-dropout networks of the paper's scale, an hour",
            "paper_networks_per_hour",
            {"scale": "paper"},
            more=True,
        ),
        Figure("its 4,000 trainings, hours, estimated", "paper_hours", {"scale": "paper"}),
    ],
}


def taken(figures: Sequence[Figure], rows: Rows) -> list[dict[str, Any]]:
    """Returns the rows of the table: those of ours, with the peer's figures and the ratio beside them.

    Args:
      figures: to be taken; one that was not measured is left out.
      rows: of one benchmark.
    """
    found = []
    for figure in figures:
        own = _best(rows, figure.quantity, figure.ours, figure.more)
        if own is None:
            continue
        row = own | {"figure": figure.what, "peer": None, "package": figure.package}
        row |= {"peer_value": None, "ratio": None, "ratio_low": None, "ratio_high": None}
        if figure.peer is not None:
            row |= _beside(figure, figure.peer, own, rows)
        found.append(row)
    return found


def _beside(figure: Figure, peer: Setting, own: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """Returns the peer's part of a line: its name, and its value and the ratio where it was measured."""
    other = _best(rows, figure.peer_quantity or figure.quantity, peer, figure.more)
    (pattern,) = [value for name, value in peer.items() if name in ("side", "engine", "clients")] or ["fixed number"]
    if other is None:
        return {"peer": pattern.rstrip(", *")}
    name = _side(other) or pattern
    given = {"peer": name, "peer_value": other["ours"]}
    if figure.ratio is None:
        quotient = own["ours"] / other["ours"] if figure.more else other["ours"] / own["ours"]
        return given | {"ratio": quotient}
    quantity, setting = figure.ratio
    names = {"ours": _side(own), "peer": name}
    wanted = {key: value.format_map(names) if isinstance(value, str) else value for key, value in setting.items()}
    (ratio,) = [row for row in rows if row["quantity"] == quantity and wanted.items() <= row["setting"].items()]
    return given | {f"ratio{end}": ratio[f"ours{end}"] for end in ("", "_low", "_high")}


def _best(rows: Rows, quantity: str, setting: Mapping[str, Any], more: bool) -> dict[str, Any] | None:
    def fits(value: Any, wanted: Any) -> bool:
        return fnmatchcase(value, wanted) if isinstance(value, str) and isinstance(wanted, str) else value == wanted

    found = [row for row in rows if row["quantity"] == quantity]
    found = [row for row in found if all(fits(row["setting"].get(name), value) for name, value in setting.items())]
    return (max if more else min)(found, key=lambda row: row["ours"], default=None)


def _side(row: dict[str, Any]) -> str | None:
    return next((row["setting"][name] for name in ("side", "engine", "clients") if name in row["setting"]), None)
