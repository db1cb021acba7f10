"""A plan that speaks of one mechanism, against audits of it; and what an audit calls detectable of LDP-SGD."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, Mechanism, _validate, distinguish
from dpaudit.auditing.attacks.base import Distinguisher
from dpaudit.auditing.bounds import gdp, plan
from dpaudit.auditing.plan_mechanism import PILOT, plan_mechanism
from dpaudit.mechanisms import ldp_sgd
from tests.integration.test_cli import run

KEY = jax.random.key(41)
AUDITS = 40
X0, X1 = jnp.zeros(1), jnp.ones(1)
PLAYED = PILOT // 2  # at a time: the program that plays the pilot plays all audits


def data(number):
    """A number that is no part of the program: mechanisms that differ in it share their compiled programs."""
    return jnp.full(1, number, jnp.float32)


def laplace(scale):
    scale = data(scale)
    return lambda key, x: x + scale * jax.random.laplace(key)


def noisy(key, x):
    return x + 3.7304 * jax.random.normal(key)


def share_of_violations(
    mechanism, x0, x1, claim: Claim, trials: int, audits: int, attack: Distinguisher = distinguish.projection
) -> float:
    """Of audits by one attack, whose trials are played together: each reads scores that no other one has seen."""
    if not isinstance(mechanism, Mechanism):
        mechanism = Mechanism(mechanism)
    score, half, inputs = attack.fit(KEY, mechanism, x0, x1), trials // 2, (x0, x1)
    key, most = jax.random.fold_in(KEY, 1), max(audits * half, PLAYED)
    played = dpaudit.play(key, lambda key, b: mechanism.apply(key, inputs[b]), score, most, batch=PLAYED)
    parts = np.moveaxis(played[:, : audits * half].reshape(2, audits, half), 0, 1)
    return sum(dpaudit.from_scores(*scores, claim=claim).verdict == "violation" for scores in parts) / audits


@pytest.fixture(scope="module")
def planned():
    """What is planned to show that Laplace noise loses 1.4 instead of 1."""
    settings = {"key": KEY, "claim": Claim(1.0), "true_epsilon": 1.4, "distinguisher": distinguish.projection}
    return plan_mechanism(laplace(1.0), X0, X1, **settings)


@pytest.mark.integration
def test_as_many_trials_as_planned_show_the_loss_four_times_in_five(planned):
    worse = laplace(1 / 1.4)
    share = share_of_violations(worse, X0, X1, Claim(1.0), planned.fixed, AUDITS)
    assert share == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / AUDITS))
    perfect = plan.plan(1.0, true_epsilon=1.4)
    assert planned.fixed > 1.5 * perfect.fixed
    # the twin: as many as a perfect attack needs do not show it
    assert share_of_violations(worse, X0, X1, Claim(1.0), perfect.fixed, AUDITS) < 0.6
    assert "projection" in planned.assumes
    assert perfect.assumes == plan.PERFECT


@pytest.mark.integration
def test_of_gaussian_noise_the_plan_says_how_much_more_it_takes():
    found = plan_mechanism(noisy, 0.0, 1.0, key=KEY, claim=Claim(1.0, 1e-5), rate=1e6)
    assert found.fixed > 1_000 * plan.plan(1.0, delta=1e-5).fixed
    seconds = found.seconds(found.fixed)
    assert seconds is not None
    assert seconds == pytest.approx(found.fixed / 1e6)


def discrete_laplace(epsilon):
    epsilon = data(epsilon)

    def released(key, x):
        first, second = jnp.floor(jax.random.exponential(key, (2, 1)) / epsilon)
        return x + (first - second).astype(jnp.int32)

    return released


def normal(epsilon):
    """The noise that loses this much at delta 0.05."""
    mu = data(gdp.mu_from_epsilon(epsilon, 0.05))
    return lambda key, x: x + jax.random.normal(key) / mu


def one_bit(epsilon):
    epsilon = data(epsilon)
    return lambda key, x: jnp.where(jax.random.bernoulli(key, jax.nn.sigmoid(-epsilon)), 1 - x, x)


def local(epsilon):
    epsilon = data(epsilon)
    return lambda key, x: ldp_sgd.randomize(key, x, epsilon=epsilon[0], clip_norm=1.0)


BITS = jnp.zeros(1, int), jnp.ones(1, int)
LAWS: dict[str, tuple[Any, Any, Any, Claim]] = {
    "Laplace": (lambda epsilon: laplace(1 / epsilon), X0, X1, Claim(1.0)),
    "Gaussian": (normal, X0, X1, Claim(1.0, 0.05)),
    "randomised response": (one_bit, *BITS, Claim(1.0)),
    "discrete Laplace": (discrete_laplace, *BITS, Claim(1.0)),
    "LDP-SGD": (local, jnp.eye(5)[0], -jnp.eye(5)[0], Claim(1.0)),
}


@pytest.mark.integration
@pytest.mark.parametrize("law", LAWS)
def test_as_many_trials_as_planned_show_twice_the_claim_four_times_in_five(law):
    of, x0, x1, claim = LAWS[law]
    found = plan_mechanism(of(1.0), x0, x1, key=KEY, claim=claim, distinguisher=distinguish.projection)
    share = share_of_violations(of(2.0), x0, x1, claim, found.fixed, AUDITS)
    assert share == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / AUDITS))
    # the twin: of the mechanism that keeps its claim, hardly any
    assert share_of_violations(of(1.0), x0, x1, claim, found.fixed, AUDITS // 2) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_stated_power_holds_over_200_audits_of_the_family(law):
    """Of audits with as many trials as the plan says, at the loss that it is for; and of audits of 8,000 trials at the
    loss that one of them at its claim calls detectable."""
    of, x0, x1, claim = LAWS[law]

    def share(epsilon: float, trials: int) -> float:
        keys, worse = jax.random.split(jax.random.fold_in(KEY, 1), 200), of(epsilon)
        found = (dpaudit.audit(worse, x0, x1, key=key, claim=claim, trials=trials) for key in keys)
        return sum(one.verdict == "violation" for one in found) / 200

    found = plan_mechanism(of(1.0), x0, x1, key=KEY, claim=claim)
    seen = dpaudit.audit(of(1.0), x0, x1, key=KEY, claim=claim, trials=8_000)
    assert seen.detectable is not None
    assert (share(2.0, found.fixed), share(seen.detectable, 8_000)) == pytest.approx((0.8, 0.8), abs=0.1)


BAD = [
    ({"claim": None}, r"claim: expected an \(epsilon, delta\) to plan for"),
    ({"claim": Claim.gaussian(1.0)}, r"claim: expected an \(epsilon, delta\) to plan for"),
    ({"true_epsilon": 0.5}, "true_epsilon: expected more than the claimed 1, got 0.5"),
    ({"confidence": 1.0}, "confidence: expected a number in"),
]


@pytest.mark.parametrize("change, message", BAD)
def test_bad_input_is_refused(change, message):
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        plan_mechanism(laplace(1.0), X0, X1, **({"key": KEY, "claim": Claim(1.0)} | change))


def test_the_command_takes_a_mechanism(monkeypatch, capsys, tmp_path):
    text = (
        "import jax\nimport dpaudit\nx0, x1, claim = 0.0, 1.0, dpaudit.Claim(1.0)\n"
        "def noisy(key, x):\n    return x + jax.random.laplace(key)\n"
    )
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    target = f"{tmp_path / 'mine.py'}:noisy"
    run(monkeypatch, "plan", target, "--rate", "1000", "--json")
    row = json.loads(capsys.readouterr().out)
    assert (row["epsilon"], row["true_epsilon"]) == (1.0, 2.0)
    assert row["fixed"] > plan.plan(1.0).fixed
    assert "pilot" in row["assumes"]
    assert run(monkeypatch, "plan") == 2
    assert "--epsilon: expected the claimed loss, or FILE:NAME" in capsys.readouterr().err


@pytest.mark.integration
def test_what_is_called_detectable_of_ldp_sgd_is_seen():
    """By the attack that the family chooses."""
    x0, x1, attack = jnp.eye(5)[0], -jnp.eye(5)[1], distinguish.likelihood_ratio
    how: dict[str, Any] = {"claim": Claim(1.0), "trials": 8_000}
    found = dpaudit.audit(ldp_sgd.mechanism(epsilon=1.0, clip_norm=1.0), x0, x1, key=KEY, **how)
    assert found.attacks[0].name == attack.name
    assert found.detectable is not None
    assert 1.0 < found.detectable < 1.5
    worse = ldp_sgd.mechanism(epsilon=found.detectable, clip_norm=1.0)
    share = share_of_violations(worse, x0, x1, audits=AUDITS, attack=attack, **how)
    assert share == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / AUDITS))
