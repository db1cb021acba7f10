"""Any protocol audited by its transcript: sound ones attain what is accounted and no more, faults go beyond it."""

from typing import Any, NamedTuple

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
from tests.personalization.protocols import START, WIDTH, people, steps

KEY, DELTA, ROUNDS = jax.random.key(3), 1e-5, 2
MU = 1 / dp_accounting.get_sigma_gaussian(1.0, DELTA)
Z = np.sqrt(ROUNDS) / MU
FAR = jnp.full((1, WIDTH), 1e3)  # a canary that attains the clip norm in every round


ONE = 1  # the fewest trials a call, so that a play and an audit of one mechanism are one program
LIKELIEST = distinguish.likelihood_ratio


def scored(mechanism: dpaudit.Mechanism, trials: int) -> np.ndarray:
    """Log likelihood ratios of both worlds, [2, trials]."""
    score = LIKELIEST.fit(KEY, mechanism, ABSENT, PRESENT)
    found = dpaudit.play(
        KEY, lambda key, world: mechanism.apply(key, (ABSENT, PRESENT)[world]), score, trials, batch=ONE
    )
    return np.asarray(found, np.float64)


@pytest.fixture(scope="module")
def sound() -> dpaudit.Mechanism:
    return of_protocol(steps(Z), START, people(6), FAR, rounds=ROUNDS, delta=DELTA)


@pytest.mark.integration
def test_the_likelihood_ratio_of_a_sound_protocol_has_the_accounted_law(sound):
    """N(-mu^2/2, mu^2) without the canary and N(mu^2/2, mu^2) with it; with 15% less noise the test would fail."""
    scores = scored(sound, 4000)
    for sample, mean in zip(scores, (-0.5, 0.5), strict=True):
        assert kstest(sample / MU - mean * MU, "norm").pvalue > 1e-3
    assert kstest(scores[1] / (1.15 * MU) - 0.5 * 1.15 * MU, "norm").pvalue < 1e-3


def test_a_sound_protocol_is_consistent(sound):
    """By the likelihood ratio, which shows all that there is."""
    assert sound.claim is not None
    assert sound.claim.epsilon == pytest.approx(1.0, rel=1e-6)

    def verdict(mu: float) -> str:
        how: dict[str, Any] = {"key": KEY, "trials": 40_000, "distinguisher": LIKELIEST, "batch": ONE}
        return dpaudit.audit(sound, ABSENT, PRESENT, claim=dpaudit.Claim.gaussian(mu), **how).verdict

    assert verdict(MU) == "consistent"
    assert verdict(0.8 * MU) == "violation"


@pytest.mark.integration
def test_parts_of_a_message_count_together_and_users_are_any_pytree():
    """People are dictionaries, and the canary has three words where one counts. Two processes: mu^2 is the sum of
    what the canary moves in each, in standard deviations, and either alone would be seen to be too little."""
    words = {"word": jnp.array([0, 1, 1, 2]), "weight": jnp.ones(4)}

    def counted(key: jax.Array, _: Any, user: Any) -> Any:
        histogram = user["weight"] * jax.nn.one_hot(user["word"], 3)
        return {"words": histogram, "used": histogram > 0}

    bound = {"words": bounded(0, 3, clip_norm=1.0), "used": bounded(0, 1)}
    processes = gaussian("words", noise_multiplier=1.0), gaussian("used", noise_multiplier=0.5)
    canary = {"word": jnp.array([2]), "weight": jnp.array([3.0])}
    both = of_protocol(private(each(everything, counted, bound=bound), *processes), (), words, canary, rounds=1)
    parts = 1.0, 1 / (0.5 * np.sqrt(3)) ** 2  # norm 1 of 1; 1 of sqrt(3)
    moved = sum(parts)
    scores = scored(both, 4000)
    shown, tolerance = scores[1].mean() - scores[0].mean(), 4 * np.sqrt(2 * moved / 4000)
    assert abs(shown - moved) < tolerance < min(parts) / 5
    assert scores.var() == pytest.approx(moved + moved**2 / 4, rel=0.1)


class Author(NamedTuple):
    """What the author of a protocol decides himself, as arrays, so that all his protocols are one program."""

    clip_norm: Any = 1.0
    sensitivity: Any = 1.0  # that the noise is made for
    shown: Any = 1.0  # of the total: a multiple


def authored(author: Author, *, reused: bool = False) -> Protocol:
    """A protocol whose author says himself how far one user moves the total."""
    process, author = gaussian("steps", noise_multiplier=Z), Author(*map(jnp.float32, author))

    def clipping(total: Any, messages: Any) -> Any:
        norms = jnp.linalg.norm(messages, axis=1, keepdims=True)
        messages = messages / jnp.maximum(norms / author.clip_norm, 1)
        return jnp.sum(messages, axis=0) + (0 if total is None else total)

    def release(key: jax.Array, total: Any, memory: Any) -> Any:
        if reused:
            key = jax.random.key(0)
        made, after = process.release(key, author.shown * total, memory, sensitivity=author.sensitivity)
        return (made,), memory if reused else after

    devices = each(everything, lambda key, state, user: user - state, clipping)
    return Protocol(lambda state: state, devices, release, lambda state, releases: state + 0.01 * releases[0].value)


FAULTS = {
    "the clip left out": Author(clip_norm=np.inf),
    "a sensitivity too small": Author(sensitivity=0.5),
    "clipped to twice the norm": Author(clip_norm=2.0),
    "a number beside the noise": Author(shown=3.0),
}


def audited(author: Author) -> dpaudit.AuditResult:
    memory = gaussian("steps", noise_multiplier=Z).init(START)
    own = of_protocol(authored(author), START, people(6), FAR, rounds=ROUNDS, memory=memory)
    assert own.log_prob is None
    return dpaudit.audit(own, ABSENT, PRESENT, key=KEY, trials=20_000)


@pytest.mark.integration
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_go_beyond_what_was_accounted(fault):
    assert audited(FAULTS[fault]).verdict == "violation"


def test_the_same_by_its_author_and_sound_is_not_accused():
    assert audited(Author()).verdict in ("consistent", "underpowered")


def test_noise_used_twice_is_refused_by_the_accountant():
    memory = gaussian("steps", noise_multiplier=Z).init(START)
    with pytest.raises(InputError, match="new noise for every release"):
        of_protocol(authored(Author(), reused=True), START, people(6), FAR, rounds=ROUNDS, memory=memory)


def test_devices_that_draw_leave_no_likelihood_ratio():
    def noisy(key: jax.Array, state: Any, user: Any) -> Any:
        return user + jax.random.normal(key, user.shape)

    drawing = private(each(everything, noisy, clip_norm=1.0), gaussian("steps", noise_multiplier=Z))
    assert isinstance(drawing.release, Noised)
    assert of_protocol(drawing, START, people(6), FAR, rounds=1).log_prob is None
    quiet = private(each(everything, lambda key, _, user: user, clip_norm=1.0), gaussian("s", noise_multiplier=Z))
    assert of_protocol(quiet, START, people(6), FAR, rounds=1).log_prob is not None


@pytest.mark.parametrize(
    "canary", [jnp.zeros((2, WIDTH)), jnp.zeros(WIDTH), jnp.zeros((1, 3)), {"x": jnp.zeros((1, 5))}]
)
def test_a_canary_of_another_shape_is_refused(canary):
    with pytest.raises(InputError, match=r"^canary: expected one user, with a leading axis of 1"):
        of_protocol(steps(1.0), START, people(6), canary, rounds=1)


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_a_canary_who_moves_nothing_is_refused(value):
    """A message with a NaN counts as zero: both worlds are the same, and any noise would do."""
    sums = private(each(everything, lambda key, _, user: user, clip_norm=1.0), gaussian("s", noise_multiplier=Z))
    with pytest.raises(InputError, match="canary: expected a user who moves a total, got one who adds zero in every"):
        of_protocol(sums, START, people(6), jnp.full((1, WIDTH), value), rounds=ROUNDS)


def test_a_canary_may_move_later_totals_alone():
    """Who has what the first model is moves nothing at first."""
    still = jnp.zeros((1, WIDTH))
    moves_nothing = steps(Z).devices(KEY, START, still)
    assert not np.any(moves_nothing)
    assert of_protocol(steps(Z), START, people(6), still, rounds=ROUNDS).claim is not None


def test_a_canary_of_zeros_may_move_a_mean():
    means = Protocol(
        lambda state: state,
        lambda key, state, users: jnp.mean(users, axis=0),
        lambda key, total, memory: authored(Author()).release(key, total, memory),
        lambda state, releases: state,
    )
    memory = gaussian("steps", noise_multiplier=Z).init(START)
    assert of_protocol(means, START, people(6), jnp.zeros((1, WIDTH)), rounds=ROUNDS, memory=memory).claim is not None
