"""dpaudit.audit takes protocols of the trust boundary as it takes mechanisms: any users, any canary, one call."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import AuditResult, InputError, distinguish, domain
from dpaudit.auditing import audit as pairs
from dpaudit.audits.protocol_audit import ABSENT, PRESENT, of_protocol
from dpaudit.personalization.boundary.processes import gaussian
from dpaudit.personalization.boundary.protocol import Protocol, each, everything, private
from experiments.paper004 import faults as als
from tests.personalization.protocols import START, WIDTH, people, steps

KEY, FAR = jax.random.key(5), jnp.full((1, WIDTH), 1e3)
RUN: dict[str, Any] = {"key": KEY, "state": START, "rounds": 2}
NAMED: dict[str, Any] = {"distinguisher": distinguish.likelihood_ratio}


@pytest.mark.integration
def test_a_protocol_is_audited_as_the_mechanism_of_its_transcript():
    result = dpaudit.audit(steps(4.0), people(6), FAR, trials=400, **RUN, **NAMED)
    hidden = of_protocol(steps(4.0), START, people(6), FAR, rounds=2)
    assert result == dpaudit.audit(hidden, ABSENT, PRESENT, key=KEY, trials=400, **NAMED)
    assert result.claim is not None
    assert result.claim.terms == {"mu": pytest.approx(np.sqrt(2) / 4)}
    assert result.neighbouring == "add_remove"
    assert result.canary is None


@pytest.mark.integration
def test_too_little_noise_for_the_claim_is_a_violation_and_enough_is_not():
    """The claim handed over is a curve of another accountant; users are a dictionary."""
    users, canary = {"x": people(6)}, {"x": FAR}
    compute = lambda key, state, user: user["x"] - state  # noqa: E731
    own = private(each(everything, compute, clip_norm=1.0), gaussian("steps", noise_multiplier=1.0))

    def verdict(mu: float) -> str:
        claim = dpaudit.Claim.gaussian(mu, neighbouring="add_remove")
        return dpaudit.audit(own, users, canary, claim=claim, trials=4_000, **RUN, **NAMED).verdict

    assert verdict(np.sqrt(2)) == "consistent"
    assert verdict(0.8 * np.sqrt(2)) == "violation"


@pytest.mark.integration
def test_the_worst_user_is_searched_for_and_named():
    anybody = domain.box((WIDTH,), -0.02, 0.6)
    result = dpaudit.audit(steps(4.0, rate=1e-4), people(6), anybody, trials=400, **RUN, **NAMED)
    assert np.linalg.norm(result.canary) > 1.0  # the clip norm is attained; a random user seldom does
    assert AuditResult.from_json(result.to_json()) == result
    again = dpaudit.audit(
        steps(4.0, rate=1e-4), people(6), jnp.array([result.canary]), trials=400, **RUN | {"key": KEY}, **NAMED
    )
    assert again.claim == result.claim


@pytest.mark.integration
def test_buckets_of_users_are_audited_too():
    """Alternating minimisation, whose users come in buckets and whose author adds the noise: by the portfolio."""
    recipe = als.recipe(als.sound_rounds(), 1.0, rounds=1)
    run: dict[str, Any] = {"key": KEY, "state": recipe.state, "rounds": 1, "memory": recipe.memory}
    protocol = recipe.make(noise_multiplier=1.0)
    result = dpaudit.audit(protocol, recipe.users, recipe.canary, trials=400, **run)
    assert result.verdict in ("consistent", "underpowered")
    assert result.claim is not None
    assert result.claim.terms == {"mu": pytest.approx(1.0)}
    with pytest.raises(InputError, match="canary: expected one user, with a leading axis of 1"):
        dpaudit.audit(protocol, recipe.users, recipe.users[0], trials=400, **run)


@pytest.mark.integration
def test_an_alternative_may_be_a_protocol():
    how: dict[str, Any] = {"trials": 2_000, **RUN, **NAMED}
    result = dpaudit.audit(steps(4.0), people(6), FAR, alternative=steps(0.5), **how)
    assert result.power is not None
    assert result.power > 0.9


def authored(release: Any) -> Protocol:
    add = lambda total, messages: messages.sum(axis=0) + (0 if total is None else total)  # noqa: E731
    return Protocol(lambda s: s, each(everything, lambda key, s, user: user, add), release, lambda s, told: s)


def computing(compute: Any) -> Protocol:
    return private(each(everything, compute, clip_norm=1.0), gaussian("steps", noise_multiplier=4.0))


kept: list[Any] = []


def keeping(key: jax.Array, state: jax.Array, user: jax.Array) -> jax.Array:
    kept.append(user)
    return kept[0] - state


def telling(key: jax.Array, state: jax.Array, user: jax.Array) -> jax.Array:
    jax.debug.print("{}", user)
    return user


def drawing(key: jax.Array, state: jax.Array, user: jax.Array) -> jax.Array:
    return user + np.random.normal()  # noqa: NPY002


def deciding(key: jax.Array, state: jax.Array, user: jax.Array) -> jax.Array:
    return user if float(user[0]) > 0 else state


PURE = "mechanism: expected a pure function .* got protocol"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another shape": ({"x1": jnp.zeros((1, 3))}, r"canary: expected one user, .* leaves float32\[5\], got \[1, 3\]"),
    "two canaries": ({"x1": jnp.zeros((2, WIDTH))}, "canary: expected one user, with a leading axis of 1"),
    "other users' domain": ({"x1": domain.box((3,), 0.0, 1.0)}, "canary: expected one user, with a leading axis of 1"),
    "half a domain": ({"x1": {"x": domain.box((3,), 0.0, 1.0), "y": 3}}, "y: expected a Domain"),
    "empty cohort": ({"x0": people(6)[:0]}, r"users: expected arrays with one leading axis, .* got \[0, 5\]"),
    "ragged users": ({"x0": {"x": people(6), "y": jnp.zeros(5)}}, "users: expected arrays with one leading axis"),
    "no rounds": ({"rounds": None}, "rounds: expected a whole number >= 1, got None"),
    "no state": ({"state": None}, "mechanism: expected a release of x1, got TypeError: .*raised by protocol"),
    "tells the host": ({"mechanism": computing(telling)}, "devices: expected a function without effects"),
    "draws without the key": ({"mechanism": computing(drawing)}, PURE),
    "keeps a value": ({"mechanism": computing(keeping)}, PURE),
    "decides in Python": (
        {"mechanism": computing(deciding)},
        "mechanism: expected a function that jax.jit can trace, got protocol, .*; write it with jax.numpy$",
    ),
    "no releases": ({"mechanism": authored(lambda *_: (3, ()))}, "release: expected a tuple of Releases"),
    "no noise": (
        {"mechanism": private(each(everything, lambda k, s, u: u, clip_norm=1.0), gaussian("s", noise_multiplier=0))},
        "transcript: expected releases, all of them with noise",
    ),
    "rounds of a mechanism": ({"mechanism": lambda key, x: x, "state": None}, "rounds: expected None, except for a"),
    "one trial": ({"trials": 1}, "trials: expected a whole number >= 2, got 1"),
    "neither": ({"mechanism": 3, "state": None, "rounds": None}, "mechanism: expected a Mechanism or a function"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(name):
    other, message = BAD[name]
    given = {"mechanism": steps(4.0), "x0": people(6), "x1": FAR, **RUN, "trials": 400}
    with pytest.raises(InputError, match=f"^{message}") as caught:
        dpaudit.audit(**given | other)
    assert "\n" not in str(caught.value)


def test_the_call_for_a_pair_has_the_same_arguments():
    """All but those of a protocol's run, with the same defaults."""
    public, own = (inspect.signature(call).parameters for call in (dpaudit.audit, pairs.audit))
    assert [*own] == [name for name in public if name not in ("state", "rounds", "memory")]
    assert all(public[name].default == own[name].default for name in own)
