"""A plan that speaks of one mechanism, against audits of it; and what an audit calls detectable of LDP-SGD."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, _validate, distinguish
from dpaudit.auditing.bounds import gdp, plan
from dpaudit.auditing.plan_mechanism import plan_mechanism
from dpaudit.mechanisms import ldp_sgd
from tests.integration.test_cli import run

KEY = jax.random.key(41)
AUDITS = 40


def laplace(scale):
    return lambda key, x: x + scale * jax.random.laplace(key)


def noisy(key, x):
    return x + 3.7304 * jax.random.normal(key)


def share_of_violations(mechanism, x0, x1, claim: Claim, trials: int, audits: int, **more: Any) -> float:
    keys = jax.random.split(jax.random.fold_in(KEY, 1), audits)
    settings = {"claim": claim, "trials": trials, "distinguisher": distinguish.projection} | more
    return sum(dpaudit.audit(mechanism, x0, x1, key=key, **settings).verdict == "violation" for key in keys) / audits


def test_as_many_trials_as_planned_show_the_loss_four_times_in_five():
    settings = {"key": KEY, "claim": Claim(1.0), "true_epsilon": 1.4, "distinguisher": distinguish.projection}
    found = plan_mechanism(laplace(1.0), 0.0, 1.0, **settings)
    worse = laplace(1 / 1.4)
    assert share_of_violations(worse, 0.0, 1.0, Claim(1.0), found.fixed, AUDITS) == pytest.approx(0.8, abs=0.2)
    perfect = plan.plan(1.0, true_epsilon=1.4)
    assert found.fixed > 1.5 * perfect.fixed
    # the twin: as many as a perfect attack needs do not show it
    assert share_of_violations(worse, 0.0, 1.0, Claim(1.0), perfect.fixed, AUDITS) < 0.6
    assert "projection" in found.assumes
    assert perfect.assumes == plan.PERFECT


def test_of_gaussian_noise_the_plan_says_how_much_more_it_takes():
    found = plan_mechanism(noisy, 0.0, 1.0, key=KEY, claim=Claim(1.0, 1e-5), rate=1e6)
    assert found.fixed > 1_000 * plan.plan(1.0, delta=1e-5).fixed
    seconds = found.seconds(found.fixed)
    assert seconds is not None
    assert seconds == pytest.approx(found.fixed / 1e6)


def discrete_laplace(epsilon):
    def released(key, x):
        first, second = jnp.floor(jax.random.exponential(key, (2,)) / epsilon)
        return x + (first - second).astype(jnp.int32)

    return released


def normal(epsilon):
    """The noise that loses this much at delta 0.05."""
    mu = float(gdp.mu_from_epsilon(epsilon, 0.05))
    return lambda key, x: x + jax.random.normal(key) / mu


def one_bit(epsilon):
    return lambda key, x: jnp.where(jax.random.bernoulli(key, jax.nn.sigmoid(-epsilon)), 1 - x, x)


def local(epsilon):
    return ldp_sgd.mechanism(epsilon=epsilon, clip_norm=1.0)


LAWS: dict[str, tuple[Any, Any, Any, Claim]] = {
    "Laplace": (lambda epsilon: laplace(1 / epsilon), 0.0, 1.0, Claim(1.0)),
    "Gaussian": (normal, 0.0, 1.0, Claim(1.0, 0.05)),
    "randomised response": (one_bit, 0, 1, Claim(1.0)),
    "discrete Laplace": (discrete_laplace, 0, 1, Claim(1.0)),
    "LDP-SGD": (local, jnp.eye(5)[0], -jnp.eye(5)[0], Claim(1.0)),
}


def planned_and_detectable(law: str, audits: int, **more: Any) -> tuple[float, float]:
    """Of audits with as many trials as the plan says, at the loss that it is for; and of audits of 8,000 trials at the
    loss that one of them at its claim calls detectable."""
    of, x0, x1, claim = LAWS[law]
    found = plan_mechanism(of(1.0), x0, x1, key=KEY, claim=claim, **more)
    planned = share_of_violations(of(2.0), x0, x1, claim, found.fixed, audits, **more)
    seen = dpaudit.audit(of(1.0), x0, x1, key=KEY, claim=claim, trials=8_000)
    assert seen.detectable is not None
    return planned, share_of_violations(of(seen.detectable), x0, x1, claim, 8_000, audits, distinguisher=None)


@pytest.mark.parametrize("law", LAWS)
def test_as_many_trials_as_planned_show_twice_the_claim_four_times_in_five(law):
    of, x0, x1, claim = LAWS[law]
    how: dict[str, Any] = {"distinguisher": distinguish.projection}
    found = plan_mechanism(of(1.0), x0, x1, key=KEY, claim=claim, **how)
    share = share_of_violations(of(2.0), x0, x1, claim, found.fixed, AUDITS, **how)
    assert share == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / AUDITS))
    # the twin: of the mechanism that keeps its claim, hardly any
    assert share_of_violations(of(1.0), x0, x1, claim, found.fixed, AUDITS, **how) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_stated_power_holds_over_200_audits_of_the_family(law):
    assert planned_and_detectable(law, 200, distinguisher=None) == pytest.approx((0.8, 0.8), abs=0.1)


BAD = [
    ({"claim": None}, r"claim: expected an \(epsilon, delta\) to plan for"),
    ({"claim": Claim.gaussian(1.0)}, r"claim: expected an \(epsilon, delta\) to plan for"),
    ({"true_epsilon": 0.5}, "true_epsilon: expected more than the claimed 1, got 0.5"),
    ({"confidence": 1.0}, "confidence: expected a number in"),
]


@pytest.mark.parametrize("change, message", BAD)
def test_bad_input_is_refused(change, message):
    with pytest.raises(_validate.InputError, match=f"^{message}"):
        plan_mechanism(laplace(1.0), 0.0, 1.0, **({"key": KEY, "claim": Claim(1.0)} | change))


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


def ldp_sgd_rate_of_violations(audits: int) -> float:
    """Of audits of LDP-SGD at the loss that one at its claim calls detectable."""
    x0, x1 = jnp.eye(5)[0], -jnp.eye(5)[1]
    trials = 8_000
    settings = {"claim": Claim(1.0), "trials": trials}
    found = dpaudit.audit(ldp_sgd.mechanism(epsilon=1.0, clip_norm=1.0), x0, x1, key=KEY, **settings)
    assert found.detectable is not None
    assert 1.0 < found.detectable < 1.5
    worse = ldp_sgd.mechanism(epsilon=found.detectable, clip_norm=1.0)
    return share_of_violations(worse, x0, x1, Claim(1.0), trials, audits, distinguisher=None)


def test_what_is_called_detectable_of_ldp_sgd_is_seen():
    share = ldp_sgd_rate_of_violations(AUDITS)
    assert share == pytest.approx(0.8, abs=3 * np.sqrt(0.8 * 0.2 / AUDITS))
