"""Audits every protocol of the documentation with the worst user that a search finds, and one that has faults.

    python -m experiments.paper004.protocols                     # a quarter of an hour, no data needed
    python -m experiments.paper004.protocols --quick --out DIR   # under a minute

The protocols are those of ``docs/howto/protocols.md``, made by running the page. The claim of each is the accounting
of its transcript as a curve; the others are its first users. *Sound*: the likelihood ratio of all releases together,
and the mu that it shows beside the accounted one. *Faults*: gradient steps whose author clips, adds noise and
accounts himself, with one thing wrong, under the portfolio of attacks.

Expect the audited mu of every protocol within 5% of the accounted one, and every fault either refused before any trial
or beyond its claim.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp

import dpaudit
from dpaudit import InputError, domain
from dpaudit.auditing.bounds import gdp
from dpaudit.auditing.result import json_number
from dpaudit.audits.protocol_audit import of_protocol
from dpaudit.audits.user_canary import shift
from dpaudit.audits.user_search import worst_user
from experiments import fingerprint
from experiments.common import Rows, options
from experiments.paper004.audit import NORMAL, key_of, likelihood_ratios
from experiments.paper004.authored import FAR, FAULTS, ROUNDS, START, Author, authored, memory
from experiments.paper004.authored import OTHERS as FEW

TRIALS = {"federated evaluation": 400_000}  # in each world: the less there is to see, the more
PAGE = Path(__file__).parents[2] / "docs/howto/protocols.md"
OTHERS, DELTA, CONFIDENCE = 20, 1e-6, 0.95


class Documented(NamedTuple):
    """A protocol of the page."""

    protocol: str  # its name on the page
    state: str  # what the server begins with, as on the page
    users: str
    rounds: int
    anybody: Any  # the domain of a user


POINT, WEIGHTS = domain.box((2,), -50.0, 50.0), domain.box((3,), -1e3, 1e3)
PROTOCOLS = {
    "mean": Documented("mean", "jnp.float32(0)", "ages", 1, domain.box((), 0.0, 200.0)),
    "histogram": Documented("histogram", "jnp.zeros(bins)", "words", 1, domain.box((), 0, 49_999, jnp.int32)),
    "quantile": Documented("quantile", "jnp.float32(10)", "ages", 30, domain.box((), 0.0, 200.0)),
    "heavy hitters": Documented("hitters", "begin", "codes", 4, domain.box((), 0, 65_535, jnp.int32)),
    "k-means": Documented("k_means", "jnp.array([[1.0, 1.0], [3.0, 3.0], [1.0, 3.0]])", "points", 6, POINT),
    "logistic regression": Documented(
        "steps", "jnp.zeros(3)", "people", 20, {"x": WEIGHTS, "y": domain.box((), 0.0, 1.0)}
    ),
    "federated evaluation": Documented(
        "evaluation", "weights", "people", 1, {"x": WEIGHTS, "y": domain.box((), 0.0, 1.0)}
    ),
}


def blocks() -> list[str]:
    """Returns the page's blocks of Python, in order, without those that audit or look at an audit's result."""
    found = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [
        block for block in found if not any(name in block for name in ("dpaudit.audit(", "worst_user(", "result."))
    ]


def code_of_page() -> str:
    """Returns the fingerprint of what is run of the page."""
    return fingerprint.of(blocks())


@cache
def page() -> dict[str, Any]:
    """Runs the page and returns its names."""
    names: dict[str, Any] = {}
    for block in blocks():
        exec(block, names)
    return names


def sound(rows: Rows, name: str, trials: int) -> None:
    """Audited mu of a documented protocol beside the accounted one, with the worst user found."""
    names, given = page(), PROTOCOLS[name]
    protocol, state, everyone = (eval(text, names) for text in (given.protocol, given.state, given.users))
    others = jax.tree.map(lambda leaf: leaf[:OTHERS], everyone)
    search_key, play_key = jax.random.split(key_of(rows))
    canary = worst_user(search_key, protocol, state, others, given.anybody, rounds=given.rounds)
    mechanism = of_protocol(protocol, state, others, canary, rounds=given.rounds)
    assert mechanism.claim is not None
    claimed = mechanism.claim.epsilon_at(DELTA)
    accounted = 1 / dp_accounting.get_sigma_gaussian(claimed, DELTA)
    scores = likelihood_ratios(play_key, mechanism, trials)
    mu, error = shift(scores)
    guessed = int((scores[0] > 0).sum()), int((scores[1] <= 0).sum())
    lower, upper = gdp.epsilon_bounds(*guessed, trials, trials, delta=DELTA, confidence=CONFIDENCE)
    setting = {"protocol": name, "rounds": given.rounds, "claimed": claimed, "accounted": accounted, "error": error}
    setting |= {"delta": DELTA, "confidence": CONFIDENCE, "page": code_of_page()}
    setting |= {"epsilon_lower": json_number(float(lower)), "epsilon_upper": json_number(float(upper))}
    setting |= {"worst": jax.tree.map(lambda leaf: jnp.round(leaf[0], 3).tolist(), canary)}
    bounds = mu - NORMAL * error, mu + NORMAL * error
    rows.add("protocol mu", setting, mu, bounds, scale=f"{trials:,} runs with the user, {trials:,} without")
    rows.finish_part(f"{name}: mu {mu:.4f} +- {error:.4f}, accounted {accounted:.4f}, worst {setting['worst']}")
    jax.clear_caches()


def faults(rows: Rows, trials: int) -> None:
    """Gradient steps of an author with one thing wrong, and with none; what the accountant lets pass is played."""
    for name, (author, canary) in {"none": (Author(), FAR), **FAULTS}.items():
        setting: dict[str, Any] = {"fault": name, "delta": DELTA, "confidence": CONFIDENCE, "rounds": ROUNDS}
        how = {"key": key_of(rows), "state": START, "rounds": ROUNDS, "memory": memory(author)}
        try:
            result = dpaudit.audit(authored(author), FEW, canary, trials=trials, confidence=CONFIDENCE, **how)
        except InputError as error:
            setting |= {"claimed": None, "attack": str(error), "verdict": "refused"}
            rows.add("protocol fault", setting, None, scale="no run")
            continue
        assert result.claim is not None
        setting |= {"claimed": result.claim.epsilon_at(DELTA), "attack": result.method, "verdict": result.verdict}
        bounds = result.epsilon_lower, result.epsilon_upper
        rows.add("protocol fault", setting, result.epsilon_hat, bounds, scale=f"{trials:,} runs")
        print(f"{name}: epsilon [{bounds[0]:.3f}, {bounds[1]:.3f}], {result.verdict}", flush=True)
        jax.clear_caches()
    rows.finish_part("faults")


REPRODUCIBLE = {"sound": sound, "faults": faults}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    rows = Rows("004", "personalization_protocols", chosen.out, chosen.seed)
    if chosen.quick:
        rows.run(sound, "mean", 20_000)
        return
    for name in PROTOCOLS:
        rows.run(sound, name, TRIALS.get(name, 200_000))
    rows.run(faults, 20_000)


if __name__ == "__main__":
    main()
