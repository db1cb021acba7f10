"""User-level DP-SGD and DP-FTRL: clipping by hand, neighbours by brute force, participation that is not kept."""

from functools import partial
from typing import Any

import dp_accounting
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpaudit import InputError
from dpaudit.personalization.boundary.aggregator import replay, run
from dpaudit.personalization.user_level import NAME, clipped_sum, dp_ftrl, dp_sgd, users
from dpaudit.training import dp_ftrl as accounting
from dpaudit.training.matrix_noise import banded, independent, toeplitz, tree
from dpaudit.training.sampling import cyclic, participation, poisson, scheduled, shuffled, spaced

KEY = jax.random.key(8)
N, WIDTH, ROUNDS = 9, 4, 12
OWNERS = np.repeat(np.arange(N - 1), [3, 1, 4, 2, 1, 3, 2, 4])  # the last user has no example
CLIP, SILENT = 1.5, 1e-6
START = {"w": jnp.zeros(3)}


def linear(params, example):
    return jnp.sum(params["w"] * example)


@pytest.fixture(scope="module")
def gradients() -> np.ndarray:
    return np.array(jax.random.normal(KEY, (len(OWNERS), 3)))


def sums(training, everyone, rounds=ROUNDS, params=START):
    """What each round releases, [rounds, d]."""
    state, memory = training.init(params)
    transcript = run(KEY, training.protocol, state, memory, everyone, rounds=rounds)[2]
    return np.asarray(transcript.values(NAME)["w"])


def by_hand(gradients, user, *, mean):
    own = gradients[user == OWNERS]
    whole = own.sum(axis=0) / (max(len(own), 1) if mean else 1)
    return whole * min(1.0, CLIP / max(np.linalg.norm(whole), 1e-9))


def silent(sampling, **changed):
    strategy = independent(sampling.participation(ROUNDS))
    settings = {"clip_norm": CLIP, "noise_multiplier": SILENT, "optimizer": optax.sgd(0.1)}
    return dp_ftrl(linear, **({"strategy": strategy, "sampling": sampling} | settings | changed))


def by_coins(sampling, **changed):
    settings = {"clip_norm": CLIP, "noise_multiplier": SILENT, "optimizer": optax.sgd(0.1)}
    return dp_sgd(linear, sampling=sampling, **settings | changed)


COHORTS, COINS = cyclic(N, 3), poisson(N, 3)
TRAININGS = {"cyclic": (COHORTS, silent(COHORTS)), "Poisson": (COINS, by_coins(COINS))}  # programs of several tests
IN_ORDER = TRAININGS["cyclic"][1]


def present(cohorts, rounds=ROUNDS):
    """[rounds, N], true where the user takes part in the round: the padding of a cohort is nobody."""
    indices, weights = map(np.asarray, jax.vmap(partial(cohorts.draw, KEY))(jnp.arange(rounds)))
    return np.any((indices[..., None] == np.arange(N)) & (weights[..., None] > 0), axis=1)


@pytest.mark.integration
@pytest.mark.parametrize("mean, kind", [(True, "spaced"), (False, "spaced"), (True, "Poisson"), (False, "Poisson")])
def test_all_of_a_users_examples_are_clipped_as_one(gradients, mean, kind):
    cohorts, make = (spaced(KEY, N, 3, ROUNDS, separation=2), silent) if kind == "spaced" else (COINS, by_coins)
    released = sums(make(cohorts, mean=mean), users(KEY, gradients, OWNERS, count=N))
    own = np.array([by_hand(gradients, user, mean=mean) for user in range(N)])
    norms = np.linalg.norm(own, axis=1)
    assert norms.min() == 0 < np.median(norms) <= norms.max() == pytest.approx(CLIP)  # one is empty, some are clipped
    assert ((norms > 0) & (norms < 0.99 * CLIP)).any()
    np.testing.assert_allclose(released, present(cohorts) @ own, atol=1e-4)
    if kind == "Poisson":  # the twin: whoever stands where nobody is, counted once for each place
        places = np.asarray(jax.vmap(partial(cohorts.draw, KEY))(jnp.arange(ROUNDS))[0])
        assert np.abs(own[places].sum(axis=1) - present(cohorts) @ own).max() > CLIP


@pytest.mark.integration
def test_padding_and_rows_change_nothing_for_any_flax_model():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.tanh(nn.Dense(3)(x.ravel())))

    model, images = Network(), jax.random.normal(KEY, (N, WIDTH, 4, 4, 1))
    params = model.init(KEY, images[0, 0])["params"]
    weights = jnp.asarray(np.arange(WIDTH) < np.arange(N)[:, None] % (WIDTH + 1), jnp.float32)

    def loss(params, image):
        scores: Any = model.apply({"params": params}, image)
        return jnp.sum(scores**2)

    def user(images, weights):
        whole = jax.grad(lambda p: jnp.sum(weights * jax.vmap(loss, (None, 0))(p, images)))(params)
        mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(weights.sum(), 1), whole)
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 0.3 / optax.global_norm(mean)), mean)

    one_by_one = jax.jit(jax.vmap(user))(images, weights)
    expected = jax.tree.map(lambda leaf: leaf.sum(axis=0), one_by_one)
    wider = jnp.pad(images, [(0, 2), (0, 3), (0, 0), (0, 0), (0, 0)], constant_values=np.nan)
    for most, batch in ((N, (images, weights)), (3, (wider, jnp.pad(weights, [(0, 2), (0, 3)])))):
        found = jax.jit(partial(clipped_sum, loss, clip_norm=0.3, mean=True, most=most))(params, *batch)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), found, expected)


@pytest.mark.integration
@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize("hostile", ["long", "NaN", "duplicates", "empty"])
def test_removing_any_user_moves_no_release_further_than_the_clip_norm(gradients, hostile, kind):
    cohorts, training = TRAININGS[kind]
    if hostile == "long":
        gradients = 1e6 * gradients
    if hostile == "NaN":
        gradients = np.where(OWNERS[:, None] == 2, np.nan, gradients)
    if hostile == "duplicates":
        gradients = gradients[np.searchsorted(OWNERS, OWNERS)]
    everyone = users(KEY, gradients, OWNERS, count=N)

    def alone(user):
        return everyone._replace(weights=everyone.weights.at[user].set(0.0))

    whole = sums(training, everyone)
    assert np.isfinite(whole).all()
    moved = np.array([np.linalg.norm(whole - sums(training, alone(user)), axis=1) for user in range(N)])
    assert moved.max() <= CLIP * (1 + 1e-5)
    expected = present(cohorts).T
    expected[[8, 2] if hostile == "NaN" else 8] = False
    np.testing.assert_array_equal(moved > 1e-4, expected)
    assert kind != "cyclic" or expected.sum(axis=1).max() == COHORTS.participation(ROUNDS).most == 4
    if hostile == "long":
        np.testing.assert_allclose(moved.max(axis=1)[:8], CLIP, rtol=1e-4)


@pytest.mark.integration
def test_an_empty_cohort_is_noise_alone(gradients):
    everyone = users(KEY, gradients, OWNERS, count=N)
    settings = {"clip_norm": CLIP, "noise_multiplier": 2.0, "optimizer": optax.sgd(0.1)}
    nobody = scheduled(np.full((1, 3), -1), examples=N)
    training = dp_ftrl(linear, strategy=independent(nobody.participation(1)), sampling=nobody, **settings)
    drawn = np.concatenate(
        [
            sums(
                dp_sgd(linear, sampling=poisson(N, 1), **settings),
                everyone._replace(weights=0 * everyone.weights),
                300,
            ),
            np.stack(
                [
                    np.asarray(
                        run(key, training.protocol, *training.init(START), everyone, rounds=1)[2].values(NAME)["w"][0]
                    )
                    for key in jax.random.split(KEY, 20)
                ]
            ),
        ]
    )
    assert abs(drawn.std() / (2.0 * CLIP) - 1) < 4 / np.sqrt(2 * drawn.size) < abs(1.2 - 1)
    assert abs(drawn.mean()) < 4 * 2.0 * CLIP / np.sqrt(drawn.size)


def test_the_server_steps_along_the_noisy_mean_and_can_be_replayed(gradients):
    cohorts = spaced(KEY, N, 3, ROUNDS, separation=2)
    training = dp_ftrl(
        linear,
        strategy=toeplitz(cohorts.participation(ROUNDS)),
        sampling=cohorts,
        clip_norm=CLIP,
        noise_multiplier=1.0,
        optimizer=optax.sgd(0.1),
    )
    state, memory = training.init(START)
    end, _, transcript = run(
        KEY, training.protocol, state, memory, users(KEY, gradients, OWNERS, count=N), rounds=ROUNDS
    )
    np.testing.assert_allclose(end.params["w"], -0.1 / 3 * transcript.values(NAME)["w"].sum(axis=0), rtol=1e-5)
    assert np.array_equal(replay(training.protocol, state, transcript).params["w"], end.params["w"])


def test_a_server_that_names_another_round_is_told_nothing(gradients):
    everyone = users(KEY, gradients, OWNERS, count=N)
    state, memory = IN_ORDER.init(START)
    for named in (1, -1):  # ahead of its turn, and once more
        wrong = state._replace(round=state.round + named)
        again = run(KEY, IN_ORDER.protocol, wrong, memory, everyone, rounds=ROUNDS)[2]
        assert np.isnan(again.values(NAME)["w"]).all()
    assert np.isfinite(sums(IN_ORDER, everyone)).all()


@pytest.mark.integration
def test_the_transcript_is_accounted_as_the_sampling_and_the_strategy_say(gradients):
    everyone = users(KEY, gradients, OWNERS, count=N)
    settings = {"clip_norm": CLIP, "noise_multiplier": 1.3, "optimizer": optax.sgd(0.1)}
    sampling = poisson(N, 3)
    transcript = run(KEY, *_made(dp_sgd(linear, sampling=sampling, **settings)), everyone, rounds=2)[2]
    one = dp_accounting.PoissonSampledDpEvent(np.ceil(3 / 9 * 2**23) / 2**23, dp_accounting.GaussianDpEvent(1.3))
    assert transcript.event() == dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(one, 2)])

    cohorts = spaced(KEY, N, 2, ROUNDS, separation=3)
    strategy = toeplitz(cohorts.participation(ROUNDS))
    training = dp_ftrl(linear, strategy=strategy, sampling=cohorts, **settings)
    whole = run(KEY, *_made(training), everyone, rounds=ROUNDS)[2]
    assert whole.mu() == pytest.approx(1 / 1.3, rel=1e-9)
    assert whole.epsilon(1e-5) == pytest.approx(accounting.epsilon(strategy, 1.3, delta=1e-5), rel=1e-9)
    part = run(KEY, *_made(training), everyone, rounds=3)[2]
    seen = participation(3, separation=3, most=3)
    assert part.epsilon(1e-5) == pytest.approx(
        accounting.epsilon(strategy, 1.3, delta=1e-5, participation=seen), rel=1e-9
    )
    assert part.epsilon(1e-5) < whole.epsilon(1e-5)


def _made(training):
    return training.protocol, *training.init(START)


FTRL: Any = {"clip_norm": CLIP, "noise_multiplier": 1.0, "optimizer": optax.sgd(0.1)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dp_ftrl(
                linear, strategy=tree(participation(12, separation=3, most=3)), sampling=cyclic(9, 3), **FTRL
            ),
            "sampling: expected at most the 3 participations of the strategy, got 4",
        ),
        (
            lambda: dp_ftrl(
                linear,
                strategy=banded(participation(12, separation=4, most=3), bands=4),
                sampling=spaced(KEY, 9, 2, 12, separation=3),
                **FTRL,
            ),
            "sampling: expected at least the 4 rounds between participations of the strategy, got 3",
        ),
        (
            lambda: dp_ftrl(linear, strategy=tree(participation(12)), sampling=scheduled([[0]], examples=9), **FTRL),
            "rounds: expected at most the 1 of the schedule, got 12",
        ),
        (
            lambda: dp_sgd(linear, sampling=shuffled(9, 3), **FTRL),
            "neighbouring: expected replace for shuffled batches",
        ),
        (
            lambda: dp_sgd(linear, sampling=poisson(9, 3), **FTRL | {"clip_norm": -1.0}),
            "clip_norm: expected a finite number > 0, got -1.0",
        ),
        (
            lambda: dp_sgd(linear, sampling=poisson(9, 3), **FTRL | {"noise_multiplier": 0}),
            "noise_multiplier: expected a finite number > 0, got 0",
        ),
        (
            lambda: sums(silent(cyclic(5, 2)), users(KEY, np.ones((3, 3)), [0, 1, 2])),
            "users: expected the 5 of the sampli",
        ),
        (
            lambda: users(KEY, np.ones((3, 2)), [0, 1]),
            r"owners: expected a whole number for each example, \[e\], got int6",
        ),
        *(
            (
                partial(make, **{"loss_fn": linear, "sampling": poisson(9, 3)} | FTRL | more | {name: wrong}),
                f"^{name}: expected {kind}",
            )
            for make, more in ((dp_sgd, {}), (dp_ftrl, {"strategy": independent(participation(12))}))
            for name, wrong, kind in (
                ("loss_fn", 1.0, "a function, got 1.0$"),
                ("sampling", 3, "a Sampling of dpaudit.training.sampling, got 3$"),
                ("optimizer", "sgd", "an optax.GradientTransformation, got sgd$"),
            )
        ),
        (lambda: users(KEY, np.ones((2, 2)), [0, 4], count=3), r"owners: expected users in 0\.\.2, got 4"),
        (lambda: users(KEY, np.ones((2, 2)), [0, -1]), r"owners: expected users in 0\.\.0, got -1"),
        (lambda: users(KEY, np.ones((0, 2)), np.zeros(0, int)), "owners: expected a whole number for each example"),
    ],
)
def test_what_is_not_kept_to_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
