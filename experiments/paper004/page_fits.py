"""Makes the facts of this page on whole fits: seconds beside earlier versions, memory, and how both grow."""

from experiments.pages import Fact, Rows, fact, only, ranged, select

ENFORCED, WAITED = (
    "92b8dba",
    "ccce386",
)  # before the boundary enforced its bounds; before groups were solved for in turn


def whole_fits(rows: Rows) -> Fact:
    """A million users are fitted at least 1.3 times as fast as before, in the median of turns."""
    (turn,), (grown,) = select(rows, "fit ratio", before=ENFORCED), select(rows, "fit exponent")
    ours, before = (only(rows, "fit seconds in turn", before=ENFORCED, side=side) for side in ("ours", "before"))
    seconds = ", ".join(f"{value:.1f}" for value in grown["setting"]["seconds"])
    users = " / ".join(f"{count:,}" for count in grown["setting"]["users"])
    told = {"ratio": ranged(turn, 2), "ours": ranged(ours, 1), "before": ranged(before, 1), "seconds": seconds}
    told |= {"apart": turn["setting"]["apart"], "of": turn["setting"]["apart_of"], "users": users}
    told |= {"exponent": grown["ours"], "steps": f"{grown['ours_low']:.2f} and {grown['ours_high']:.2f}"}
    return fact(turn["ours"] >= 1.3 and grown["ours_high"] <= 1.05, scale=ours["scale"], **told)


def fits_in_turn(rows: Rows) -> Fact:
    """Where groups are solved for in turn, fits find the same, end, and are not slower where both versions end."""
    ratios = select(rows, "fit ratio", before=WAITED)
    both = [row for row in ratios if row["setting"]["turns"]]
    same = all(row["setting"]["apart"] == 0 for row in both)
    sides = {side: select(rows, "fit seconds in turn", before=WAITED, side=side) for side in ("before", "ours")}
    ended = {side: sum(row["setting"]["ended"] for row in found) for side, found in sides.items()}
    stood = [row["setting"] for row in sides["before"] if row["setting"]["ended"]]
    (worst,) = stood
    ours = only(rows, "fit seconds in turn", before=WAITED, side="ours", users=worst["users"], rank=worst["rank"])
    told = " and ".join(
        f"{ranged(row, 2)} times for {row['setting']['users']:,} users at rank {row['setting']['rank']}"
        for row in both
    )
    return fact(
        same and not ended["ours"] and min(row["ours"] for row in both) > 0.97,
        told=told,
        stood=worst["ended"],
        fits=worst["fits"],
        users=worst["users"],
        rank=worst["rank"],
        limit=worst["limit"],
        seconds=ranged(ours, 1),
    )


def fits_memory(rows: Rows) -> Fact:
    """What a fit takes beside its ratings, and that it grows more slowly than users."""
    grown = only(rows, "memory exponent")
    found = ", ".join(f"{value:.2f}" for value in grown["setting"]["gib"])
    return fact(grown["ours_high"] <= 1.05, found=found, exponent=grown["ours"])
