"""DP-FTRL against published numbers, DP-SGD, and brute force over neighbours."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpaudit._validate import InputError
from dpaudit.training.dp_ftrl import claim, correlated, dp_ftrl, epsilon, noise_multiplier
from dpaudit.training.dp_sgd import dp_sgd, train
from dpaudit.training.matrix_noise import Strategy, independent, restarted, toeplitz, tree
from dpaudit.training.sampling import cyclic, participation, poisson, shuffled

KEY = jax.random.key(11)
ROUNDS = 12
PATTERN = participation(ROUNDS, separation=4)
TOEPLITZ = toeplitz(PATTERN)


def test_the_privacy_of_a_banded_strategy_on_data_that_is_better_separated():
    # Only the norm of a column and the number of participations count, not the coefficients: 3 instead of 5 of them.
    strategy = toeplitz(participation(2_000, separation=400), bands=400)
    seen = participation(2_000, separation=484, most=3)
    relative = strategy.sensitivity(seen) / strategy.sensitivity(strategy.pattern)
    assert (relative / 1.411) ** 2 / 2 == pytest.approx(0.1506840, abs=5e-8)
    assert epsilon(strategy, 1.411, delta=1e-10, participation=seen) == pytest.approx(3.424007, abs=5e-7)
    assert epsilon(strategy, 1.411, delta=1e-10) > 4.5


def test_past_the_last_round_nothing_is_released():
    noise = correlated(tree(PATTERN), 1.0)

    def step(memory, key):
        return noise.add(key, jnp.zeros(3), memory)[::-1]

    released = jax.lax.scan(step, noise.init(jnp.zeros(3)), jax.random.split(KEY, ROUNDS + 3))[1]
    assert np.isfinite(released[:ROUNDS]).all()
    assert np.isnan(released[ROUNDS:]).all()


# Training: the loss <w, x> has gradient x, whatever the parameters

EXAMPLES = 12


def loss(params, example):
    return jnp.sum(params["w"] * example)


def trainer(strategy: Strategy, **changed):
    settings = {"clip_norm": 2.0, "noise_multiplier": 1.0, "batch_size": 3, "optimizer": optax.sgd(1.0)}
    return dp_ftrl(loss, strategy=strategy, **(settings | changed))


@pytest.mark.integration
def test_one_example_moves_a_training_by_the_sensitivity_and_no_more():
    strategy = toeplitz(cyclic(EXAMPLES, 3).participation(ROUNDS))
    assert strategy.pattern == PATTERN
    made = trainer(strategy, noise_multiplier=1e-3)
    data = 100 * jax.random.normal(KEY, (EXAMPLES, 4))  # all clipped
    removed = [data.at[i].set(0.0) for i in range(EXAMPLES)]
    replaced = [data.at[i].set(-data[i]) for i in range(EXAMPLES)]
    worlds = jnp.stack([data, *removed, *replaced])

    def step(states, _):
        one = jax.vmap(lambda state, data: train(KEY, made, state, data, cyclic(EXAMPLES, 3), 1)[0])
        states = one(states, worlds)
        return states, states.params["w"]

    start = jax.jit(jax.vmap(lambda _: made.init({"w": jnp.zeros(4)})))(worlds)
    _, models = jax.lax.scan(step, start, length=ROUNDS)
    gradients = -3 * np.diff(models, axis=0, prepend=0)  # [rounds, worlds, d]: SGD at rate 1, sums over 3 examples
    moved = gradients[:, 1:] - gradients[:, :1]  # the noise is the same in all worlds
    sizes = np.linalg.norm(np.einsum("st,tid->isd", strategy.matrix(), moved), axis=(1, 2)).reshape(2, EXAMPLES)
    limit = 2.0 * strategy.sensitivity(strategy.pattern)
    np.testing.assert_allclose(sizes.max(axis=1), [limit, 2 * limit], rtol=1e-4)
    assert sizes.min() > 2.0


@pytest.mark.integration
def test_with_independent_noise_it_is_dp_sgd():
    data = jax.random.normal(KEY, (EXAMPLES, 4))
    sampling = poisson(EXAMPLES, 3)
    settings = {"clip_norm": 2.0, "batch_size": 3, "optimizer": optax.adam(0.1)}
    strategy = independent(participation(4))  # of sensitivity 2
    made = dp_ftrl(loss, strategy=strategy, noise_multiplier=0.5, **settings)
    plain = dp_sgd(loss, noise_multiplier=1.0, **settings)
    results = [train(KEY, m, m.init({"w": jnp.zeros(4)}), data, sampling, 4)[0].params["w"] for m in (made, plain)]
    np.testing.assert_allclose(*results, rtol=1e-5)
    assert np.abs(results[0]).min() > 0


@pytest.mark.integration
def test_trainings_together_or_in_parts_equal_one_training():
    data = jax.random.normal(KEY, (EXAMPLES, 4))
    made, sampling = trainer(restarted(tree(participation(5, separation=4)), 3)), cyclic(EXAMPLES, 3)

    def run(key):
        return train(key, made, made.init({"w": jnp.zeros(4)}), data, sampling, 9)[0]

    keys = jax.random.split(KEY, 3)
    together = jax.vmap(run)(keys)
    for i, key in enumerate(keys):
        np.testing.assert_allclose(together.params["w"][i], run(key).params["w"], rtol=1e-5, atol=1e-5)
    parts = made.init({"w": jnp.zeros(4)})
    for _ in range(3):
        parts, _ = train(keys[0], made, parts, data, sampling, 3)
    assert jax.tree.all(jax.tree.map(np.array_equal, parts, run(keys[0])))
    assert not np.array_equal(together.params["w"][0], together.params["w"][1])


# Accounting and bad input


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (poisson(EXAMPLES, 3), "sampling: expected at most the 3 participations of the strategy, got 12"),
        (shuffled(EXAMPLES, 3), "sampling: expected at least the 4 rounds between participations of the strategy"),
    ],
    ids=["more often", "sooner again"],
)
def test_batches_in_which_examples_take_part_more_often_than_the_noise_is_made_for_are_refused(sampling, message):
    data = jnp.ones((EXAMPLES, 4))

    def taking(strategy, sampling):
        made = trainer(strategy)
        return jax.eval_shape(lambda key: train(key, made, made.init({"w": jnp.zeros(4)}), data, sampling, 1), KEY)

    with pytest.raises(InputError, match=message):
        taking(TOEPLITZ, sampling)
    taking(TOEPLITZ, cyclic(EXAMPLES, 3))
    more = TOEPLITZ._replace(pattern=sampling.participation(ROUNDS))  # whose noise is scaled to what it is given
    taking(more, sampling)
    given = epsilon(TOEPLITZ, 1.0, delta=1e-5, participation=sampling.participation(ROUNDS))
    assert given > epsilon(TOEPLITZ, 1.0, delta=1e-5) == pytest.approx(epsilon(more, 1.0, delta=1e-5))


def test_epsilon_follows_the_participation_and_the_relation():
    strategy = TOEPLITZ
    spent = [epsilon(strategy, 1.0, delta=1e-5, participation=participation(t, separation=4)) for t in (1, 5, 12)]
    assert 0 < spent[0] < spent[1] < spent[2] == epsilon(strategy, 1.0, delta=1e-5)
    replaced = epsilon(strategy, 1.0, delta=1e-5, neighbouring="replace")
    assert replaced == epsilon(strategy, 0.5, delta=1e-5) > spent[2]
    found = noise_multiplier(strategy, 2.0, delta=1e-5, neighbouring="replace")
    assert epsilon(strategy, found, delta=1e-5, neighbouring="replace") == pytest.approx(2.0, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: trainer(s, clip_norm=0.0), "clip_norm: expected a finite number > 0, got 0.0"),
        (lambda s: trainer(s, noise_multiplier=-1), "noise_multiplier: expected a finite number > 0, got -1"),
        (lambda s: epsilon(s, 0.0, delta=1e-5), "noise_multiplier: expected a finite number > 0, got 0.0"),
        (lambda s: epsilon(s, 1.0, delta=0.0), r"delta: expected a number in \(0, 1\), got 0.0"),
        (
            lambda s: epsilon(s, 1.0, delta=0.1, neighbouring="add_remove"),
            "neighbouring: expected one of zero_out, re",
        ),
        (lambda s: noise_multiplier(s, 0.0, delta=1e-5), "target: expected a finite number > 0, got 0.0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(TOEPLITZ)


@pytest.mark.parametrize("neighbouring", ["zero_out", "replace"])
def test_the_claim_is_the_curve_through_every_epsilon(neighbouring):
    promised = claim(TOEPLITZ, 1.3, participation=participation(5, separation=4), neighbouring=neighbouring)
    assert promised.neighbouring == ("replace" if neighbouring == "replace" else "add_remove")
    for delta in (1e-2, 1e-6):
        spent = epsilon(
            TOEPLITZ, 1.3, delta=delta, participation=participation(5, separation=4), neighbouring=neighbouring
        )
        assert promised.epsilon_at(delta) == pytest.approx(spent, rel=1e-9)


def test_numbers_of_narrow_types_are_the_numbers():
    """100 * 2 is -56 in int8, and half precision has three digits."""
    given: Any = np.float16(1.1)
    stepped = [
        made.step(KEY, made.init({"w": jnp.zeros(4)}), jnp.ones((3, 4)), jnp.ones(3))[0].params["w"]
        for made in (
            trainer(TOEPLITZ, clip_norm=np.int8(100), noise_multiplier=np.int8(2)),
            trainer(TOEPLITZ, clip_norm=100.0, noise_multiplier=2.0),
        )
    ]
    np.testing.assert_array_equal(*stepped)
    how: dict[str, Any] = {"participation": PATTERN._replace(most=2)}
    same: dict[str, Any] = how | {"delta": 1e-3}
    assert epsilon(TOEPLITZ, given, **same) == epsilon(TOEPLITZ, float(given), **same)
    assert claim(TOEPLITZ, given, **how) == claim(TOEPLITZ, float(given), **how)
    assert noise_multiplier(TOEPLITZ, given, **same) == noise_multiplier(TOEPLITZ, float(given), **same)
