"""Judges the document's claims by the result rows."""

from experiments.pages import Claim, Rows, Verdict, apart, each_scale, from_interval, only, select
from experiments.paper004 import page_crossover
from experiments.paper004.run import TRIALS

PUBLIC, PLAIN, STEPS = "alternating, public features", "alternating", "gradient steps, public features"
UTILITY, AUDIT = "personalization", "paper004.audit"
NEAR = 0.05  # of the accounted mu, relative


def better(rows: Rows, method: str, other: str, quantity: str = "rmse", data: str = "MovieLens 100K") -> Verdict:
    """Tells whether a method's error is below another's at every epsilon, by Student's interval over the splits."""
    found = {}
    for epsilon in (row["setting"]["epsilon"] for row in select(rows, quantity, method=method)):
        if epsilon is None:
            continue
        ours, theirs = (only(rows, quantity, method=name, epsilon=epsilon) for name in (method, other))
        less, error = apart(theirs, ours, TRIALS)
        found[epsilon] = (less, error, from_interval(less - error, less + error))
    verdicts = {holds for _, _, holds in found.values()}
    told = "; ".join(f"{less:+.3f} ± {error:.3f} at ε = {epsilon:g}" for epsilon, (less, error, _) in found.items())
    return Verdict(
        verdicts.pop() if len(verdicts) == 1 else None, f"reduction of RMSE {told}", f"{data}, {TRIALS} splits"
    )


def with_ranks(found: Verdict, rows: Rows, method: str, quantity: str = "rmse") -> Verdict:
    """Adds which ranks of the factors were chosen at the epsilons: at rank 0 there are none, and nothing alternates."""
    chosen = [row["setting"] for row in select(rows, quantity, method=method) if row["setting"]["epsilon"] is not None]
    ranks = sorted({at["choice"]["rank"] for at in chosen})
    told = "no factors chosen at any ε" if ranks == [0] else f"of rank {', '.join(map(str, ranks))}"
    return found._replace(ours=f"{found.ours} ({told})")


def features(rows: Rows) -> Verdict:
    return with_ranks(better(rows, PUBLIC, PLAIN), rows, PUBLIC)


def against_steps(rows: Rows) -> Verdict:
    """Judges alternating minimisation by MovieLens and by Jester: where one of them speaks against it, it fails.

    Where its lead depends on epsilon, so that neither does, the answer is from which epsilon on it leads.
    """
    films = with_ranks(better(rows, PUBLIC, STEPS), rows, PUBLIC)
    jokes = better(rows, PLAIN, "gradient steps", "jester rmse", "Jester")
    jokes = with_ranks(jokes, rows, PLAIN, "jester rmse")
    verdicts = {films.holds, jokes.holds}
    holds = False if False in verdicts else None if None in verdicts else True
    lead = page_crossover.ahead_from(rows).values
    ahead = f"with the best rank, where both methods' factors beat item biases, ahead {lead['told']}"
    ahead += f"; only its own beat them {lead['alone']} (CROSSOVER.md)"
    return Verdict(holds, f"{films.ours}; Jester: {jokes.ours}; {ahead}", "MovieLens 100K and Jester, 5 splits each")


def transcript(rows: Rows) -> Verdict:
    """Tells whether no phase shows more than it claims; an audit that shows far less than is accounted decides nothing."""
    own = select(rows, "mu")
    off = max(abs(row["ours"] / row["setting"]["accounted"] - 1) for row in own)
    kept = all(row["setting"]["epsilon_lower"] <= row["setting"]["claimed"] for row in own)
    told = f"{len(own)} phases, audited μ within {off:.1%} of the accounted"
    return Verdict((True if off < NEAR else None) if kept else False, told, each_scale(own))


def faults(rows: Rows) -> Verdict:
    both = select(rows, "fault") + select(rows, "protocol fault")
    own = [row for row in both if row["setting"]["fault"] != "none"]
    found = sum(row["setting"]["verdict"] in ("violation", "refused") for row in own)
    return Verdict(found == len(own), f"{found} of {len(own)} found or refused", each_scale(own))


# fmt: off
CLAIMS = (
    Claim("Everything that leaves the devices and the aggregator is, together, user-level (ε, δ)-DP", "", transcript, AUDIT),
    Claim("An audit of the transcript finds implementations that break this promise (our addition)", "", faults, AUDIT),
    Claim("Public features make private alternating minimisation more useful", "", features, UTILITY),
    Claim("Alternating minimisation is more useful than generic gradient steps (our question)", "", against_steps, UTILITY),
)
# fmt: on
