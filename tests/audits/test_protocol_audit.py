"""Any protocol audited by its transcript: sound ones attain what is accounted and no more, faults go beyond it."""

from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

import dpaudit
from dpaudit import InputError, distinguish
from dpaudit.audits.protocol_audit import ABSENT, PRESENT, of_protocol
from dpaudit.personalization.boundary.bounds import Noised, bounded
from dpaudit.personalization.boundary.processes import gaussian
from dpaudit.personalization.boundary.protocol import Protocol, each, everything, private
from tests.personalization.protocols import START, WIDTH, people, steps, two_parts

KEY, DELTA, ROUNDS = jax.random.key(3), 1e-5, 2
MU = 1 / dp_accounting.get_sigma_gaussian(1.0, DELTA)
Z = np.sqrt(ROUNDS) / MU
FAR = jnp.full((1, WIDTH), 1e3)  # a canary that attains the clip norm in every round


def scored(mechanism: dpaudit.Mechanism, trials: int) -> np.ndarray:
    """Log likelihood ratios of both worlds, [2, trials]."""
    score = distinguish.likelihood_ratio.fit(KEY, mechanism, ABSENT, PRESENT)
    found = dpaudit.play(KEY, lambda key, world: mechanism.apply(key, (ABSENT, PRESENT)[world]), score, trials)
    return np.asarray(found, np.float64)


def test_the_likelihood_ratio_of_a_sound_protocol_has_the_accounted_law():
    """N(-mu^2/2, mu^2) without the canary and N(mu^2/2, mu^2) with it; with 15% less noise the test would fail."""
    sound = of_protocol(steps(Z), START, people(6), FAR, rounds=ROUNDS)
    scores = scored(sound, 4000)
    for sample, mean in zip(scores, (-0.5, 0.5), strict=True):
        assert kstest(sample / MU - mean * MU, "norm").pvalue > 1e-3
    assert kstest(scores[1] / (1.15 * MU) - 0.5 * 1.15 * MU, "norm").pvalue < 1e-3


def test_parts_of_a_message_count_together():
    """Two processes: mu^2 is the sum of what the canary moves in each, in standard deviations."""
    both = of_protocol(two_parts(4.0), START, people(6), FAR, rounds=1)
    moved = 1 / 4**2 + 1 / (2 * 4) ** 2  # norm 1.5 of 1.5; sqrt(5) of sqrt(5)
    scores = scored(both, 4000)
    shown = scores[1].mean() - scores[0].mean()
    assert abs(shown - moved) < 4 * np.sqrt(2 * moved / 4000)
    assert scores.var() == pytest.approx(moved + moved**2 / 4, rel=0.1)


def test_a_sound_protocol_is_consistent_and_tight():
    sound = of_protocol(steps(Z), START, people(6), FAR, rounds=ROUNDS, delta=DELTA)
    assert sound.claim is not None
    assert sound.claim.epsilon == pytest.approx(1.0, rel=1e-6)
    result = dpaudit.audit(sound, ABSENT, PRESENT, key=KEY, trials=40_000, claim=dpaudit.Claim.gaussian(MU))
    assert result.verdict == "consistent"


def _sum(total: Any, messages: Any) -> Any:
    return jnp.sum(messages, axis=0) + (0 if total is None else total)


def authored(add: Any, sensitivity: float = 1.0, *, shown: Any = None, reused: bool = False) -> Protocol:
    """A protocol whose author says himself how far one user moves the total."""
    process = gaussian("steps", noise_multiplier=Z)

    def release(key: jax.Array, total: Any, memory: Any) -> Any:
        total = total if shown is None else shown(total)
        if reused:
            key = jax.random.key(0)
        made, after = process.release(key, total, memory, sensitivity=sensitivity)
        return (made,), memory if reused else after

    devices = each(everything, lambda key, state, user: user - state, add)
    return Protocol(lambda state: state, devices, release, lambda state, releases: state + 0.01 * releases[0].value)


def clipping(total: Any, messages: Any) -> Any:
    norms = jnp.linalg.norm(messages, axis=1, keepdims=True)
    return _sum(total, messages / jnp.maximum(norms, 1))


FAULTS = {
    "the clip left out": authored(_sum),
    "a sensitivity too small": authored(clipping, 0.5),
    "clipped to twice the norm": authored(lambda total, messages: clipping(total, messages * 1e6) * 1.0 * 2),
    "a number beside the noise": authored(clipping, shown=lambda total: 3 * total),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_go_beyond_what_was_accounted(fault):
    memory = gaussian("steps", noise_multiplier=Z).init(START)
    broken = of_protocol(FAULTS[fault], START, people(6), FAR, rounds=ROUNDS, memory=memory)
    result = dpaudit.audit(broken, ABSENT, PRESENT, key=KEY, trials=20_000)
    assert result.verdict == "violation"


def test_the_same_by_its_author_and_sound_is_not_accused():
    memory = gaussian("steps", noise_multiplier=Z).init(START)
    sound = of_protocol(authored(clipping), START, people(6), FAR, rounds=ROUNDS, memory=memory)
    assert sound.log_prob is None
    result = dpaudit.audit(sound, ABSENT, PRESENT, key=KEY, trials=20_000)
    assert result.verdict in ("consistent", "underpowered")


def test_noise_used_twice_is_refused_by_the_accountant():
    memory = gaussian("steps", noise_multiplier=Z).init(START)
    with pytest.raises(InputError, match="new noise for every release"):
        of_protocol(authored(clipping, reused=True), START, people(6), FAR, rounds=ROUNDS, memory=memory)


def test_devices_that_draw_leave_no_likelihood_ratio():
    def noisy(key: jax.Array, state: Any, user: Any) -> Any:
        return user + jax.random.normal(key, user.shape)

    drawing = private(each(everything, noisy, clip_norm=1.0), gaussian("steps", noise_multiplier=Z))
    assert isinstance(drawing.release, Noised)
    assert of_protocol(drawing, START, people(6), FAR, rounds=1).log_prob is None
    quiet = private(each(everything, lambda key, _, user: user, clip_norm=1.0), gaussian("s", noise_multiplier=Z))
    assert of_protocol(quiet, START, people(6), FAR, rounds=1).log_prob is not None


def test_users_are_any_pytree():
    """A histogram of words, people as dictionaries; the canary is one who has three words where one counts."""
    words = {"word": jnp.array([0, 1, 1, 2]), "weight": jnp.ones(4)}
    count = each(
        everything,
        lambda key, _, user: user["weight"] * jax.nn.one_hot(user["word"], 3),
        bound=bounded(0, 1, clip_norm=1.0),
    )
    table = private(count, gaussian("words", noise_multiplier=1.0))
    canary = {"word": jnp.array([2]), "weight": jnp.array([3.0])}
    hidden = of_protocol(table, (), words, canary, rounds=1)
    scores = scored(hidden, 4000)
    assert scores[1].mean() - scores[0].mean() == pytest.approx(1.0, abs=4 * np.sqrt(2 / 4000))


@pytest.mark.parametrize(
    "canary", [jnp.zeros((2, WIDTH)), jnp.zeros(WIDTH), jnp.zeros((1, 3)), {"x": jnp.zeros((1, 5))}]
)
def test_a_canary_of_another_shape_is_refused(canary):
    with pytest.raises(InputError, match=r"^canary: expected one user, with a leading axis of 1"):
        of_protocol(steps(1.0), START, people(6), canary, rounds=1)
