"""Makes the table and facts on other programs and on gradient steps without privacy."""

from experiments.pages import Fact, Rows, fact, number, only, ranged, select, table

ADAM, STEPS, OURS = "NoisyAdam, public features", "gradient steps, public features", "alternating, public features"


def peers(rows: Rows) -> str:
    lines = []
    for row in select(rows, "peer rmse"):
        at = row["setting"]
        accounted = number(at["accounted"], 2) if "accounted" in at else "–"
        lines.append([at["side"], number(at["epsilon"], 0), accounted, number(at["true_epsilon"], 2), ranged(row, 3)])
    return table(["program", "ε", "accounted by it", "true ε", "RMSE"], lines)


def peer_dpals(rows: Rows) -> Fact:
    """Ours has the lower error at every epsilon, although unmended the other spends more than it accounts."""
    ours = {row["setting"]["epsilon"]: row for row in select(rows, "peer rmse", side="ours")}
    theirs = [row for row in select(rows, "peer rmse") if row["setting"]["side"] != "ours"]
    leads = [row["ours"] - ours[row["setting"]["epsilon"]]["ours"] for row in theirs]
    plain = [row["setting"] for row in select(rows, "peer rmse", side="DPALS")]
    times = [at["true_epsilon"] / at["epsilon"] for at in plain]
    told = {"least": min(leads), "most": max(leads), "fewest": min(times), "times": max(times)}
    at = theirs[0]["setting"]
    told |= {"candidates": at["candidates"], "public": at["public_users"], "scale": theirs[0]["scale"]}
    return fact(min(leads) > 0 and min(times) > 1, **told)


def noisy_adam(rows: Rows) -> Fact:
    """With one setting, chosen by nobody, it is at every epsilon as good as ours or better."""
    found = select(rows, "rmse", method=ADAM)
    leads = [
        only(rows, "movielens rmse", method=OURS, epsilon=row["setting"]["epsilon"])["ours"] - row["ours"]
        for row in found
    ]
    values = ", ".join(f"{row['ours']:.3f}" for row in found)
    epsilons = ", ".join(f"{row['setting']['epsilon']:g}" for row in found)
    return fact(min(leads) > 0, values=values, epsilons=epsilons, least=min(leads), most=max(leads))


def gradient_baseline(rows: Rows) -> Fact:
    """Without noise, gradient steps are neither clipped nor stopped early, and below every row with noise and the
    alternating minimisation without."""
    bare = only(rows, "rmse", method=STEPS, epsilon=None)
    noisy = [row["ours"] for row in select(rows, "rmse", method=STEPS) if row["setting"]["epsilon"] is not None]
    other = only(rows, "rmse", method=OURS, epsilon=None)["ours"]
    free = "clip_norm" not in bare["setting"]["choice"]
    return fact(free and bare["ours"] < min([*noisy, other]), value=bare["ours"], other=other, noisy=min(noisy))
