"""DP-SGD: the step against one written out by hand, its noise, and a training that may be cut and mapped."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import kstest, norm

from dpaudit import InputError, _platform
from dpaudit.training import dp_sgd as module
from dpaudit.training.dp_sgd import Noise, add_noise, dp_sgd, noisy_sums, train
from dpaudit.training.sampling import poisson

KEY = jax.random.key(11)
N, D, BATCH = 48, 5, 12


def loss(params, example):
    features, target = example
    return 0.5 * (features @ params["w"] + params["b"] - target) ** 2


def problem(n=N):
    features = jax.random.normal(jax.random.key(1), (n, D))
    return features, features @ jnp.arange(1.0, D + 1)


PARAMS = {"w": jnp.zeros(D), "b": jnp.float32(0.5)}
SETTINGS: dict[str, Any] = {"clip_norm": 2.0, "noise_multiplier": 1.0, "batch_size": BATCH}
SETTINGS["optimizer"] = optax.sgd(0.1)


PLAIN, SAMPLING = dp_sgd(loss, **SETTINGS), poisson(N, BATCH)


def changed(**change: Any) -> dict[str, Any]:
    return SETTINGS | change


def by_hand(params, batch, weights, clip_norm):
    """(sum_i w_i g_i min(1, C/|g_i|), how many of weight > 0 are longer than C), one after another in float64."""
    total, clipped, slope = np.zeros(D + 1), 0, jax.jit(jax.grad(loss))
    for *example, weight in zip(*map(np.asarray, (*batch, weights)), strict=True):
        gradient = slope(params, tuple(example))
        flat = np.concatenate([np.asarray(gradient["w"], np.float64), [float(gradient["b"])]])
        total += float(weight) * flat * min(1, clip_norm / np.linalg.norm(flat))
        clipped += bool(weight > 0 and np.linalg.norm(flat) > clip_norm)
    return total, clipped


def test_a_step_is_the_clipped_sum_over_the_expected_batch_size():
    trainer = dp_sgd(loss, **changed(noise_multiplier=1e-9, clip_norm=18.0))
    batch = jax.tree.map(lambda leaf: leaf[:BATCH], problem())
    weights = jnp.arange(BATCH) < 7
    after, info = jax.jit(trainer.step)(KEY, trainer.init(PARAMS), batch, weights.astype(jnp.float32))
    total, clipped = by_hand(PARAMS, batch, weights, 18.0)
    np.testing.assert_allclose(after.params["w"], PARAMS["w"] - 0.1 * total[:D] / BATCH, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(after.params["b"], PARAMS["b"] - 0.1 * total[D] / BATCH, rtol=1e-5)
    losses = np.asarray(jax.jit(jax.vmap(loss, in_axes=(None, 0)))(PARAMS, batch))
    assert info.loss == pytest.approx(float(losses[:7].mean()), rel=1e-5)
    assert (int(info.examples), int(info.dropped), int(after.step)) == (7, 0, 1)
    assert 0 < int(info.clipped) == clipped < 7


def empty_steps(noise_multiplier, clip_norm, dtype=jnp.float32):
    """What 2,000 steps on empty batches add to 51 parameters: noise alone."""
    wide = {"w": jnp.zeros(50, dtype), "b": jnp.zeros((), dtype)}
    settings: dict[str, Any] = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier, "batch_size": BATCH}
    trainer = dp_sgd(lambda p, e: jnp.sum(p["w"]) * e + p["b"], **settings, optimizer=optax.sgd(1.0))
    step = jax.jit(jax.vmap(lambda key: trainer.step(key, trainer.init(wide), jnp.ones(4), jnp.zeros(4))))
    states, info = step(jax.random.split(KEY, 2_000))
    assert (np.asarray(info.examples) == 0).all()
    return np.concatenate([np.asarray(states.params["w"], np.float64).ravel(), np.asarray(states.params["b"])])


def test_an_empty_batch_is_a_step_of_noise_of_the_stated_scale():
    drawn = empty_steps(1.5, 2.0)
    assert kstest(drawn, norm(0, 1.5 * 2.0 / BATCH).cdf).pvalue > 1e-3
    # sqrt(n) D of the twin has mean 6.4 and deviation 0.25, and 2.7 makes a p-value of 1e-6.
    assert kstest(drawn, norm(0, 1.08 * 1.5 * 2.0 / BATCH).cdf).pvalue < 1e-6
    error = 1 / np.sqrt(2 * drawn.size)
    assert abs(drawn.std() / (1.5 * 2.0 / BATCH) - 1) < 4 * error < 0.03 - 5 * error  # 3% more or less would be seen


def test_noise_is_drawn_in_float32_for_narrow_parameters_and_for_each_on_its_own():
    narrow = {"w": jnp.zeros(20_000, jnp.bfloat16), "v": jnp.zeros(20_000, jnp.bfloat16)}
    noisy = jax.jit(add_noise)(KEY, narrow, 1.0)
    assert noisy["w"].dtype == jnp.float32
    assert len(np.unique(noisy["w"])) > 19_000  # bfloat16 noise has 128 values
    assert abs(np.corrcoef(noisy["w"], noisy["v"])[0, 1]) < 4 / np.sqrt(20_000)


def test_every_number_of_every_leaf_gets_noise_of_its_own():
    """Correlations of all pairs of numbers over many draws; rows of a matrix that share theirs have 1."""
    like = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(2), "c": jnp.zeros(())}
    drawn = jax.jit(jax.vmap(lambda key: add_noise(key, like, 1.0)))(jax.random.split(KEY, 20_000))
    flat = np.concatenate([np.asarray(leaf).reshape(20_000, -1) for leaf in jax.tree.leaves(drawn)], axis=1)
    for of in (flat, flat**2):  # the squares see a number that is another's but for its sign
        assert np.abs(np.corrcoef(of.T) - np.eye(15)).max() < 5 / np.sqrt(20_000)


def test_every_step_draws_noise_and_a_batch_of_its_own():
    trainer = dp_sgd(lambda params, example: 0 * jnp.sum(params), **changed(optimizer=optax.sgd(1.0)))
    after, info = train(KEY, trainer, trainer.init(jnp.zeros(5_000)), problem(), poisson(N, BATCH), 4)
    one = 2.0 / BATCH
    assert kstest(after.params, norm(0, 2 * one).cdf).pvalue > 1e-3
    assert kstest(after.params, norm(0, 4 * one).cdf).pvalue < 1e-6  # what one step's noise, four times, would be
    assert len(set(np.asarray(info.examples).tolist())) > 1


def test_narrow_parameters_are_trained_with_wide_moments():
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    trainer = dp_sgd(loss, **changed(optimizer=optax.adam(0.1)))
    after, _ = train(KEY, trainer, trainer.init(narrow), problem(), poisson(N, BATCH), 3)
    assert after.params["w"].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(after.opt_state)} == {np.dtype("float32"), np.dtype("int32")}
    assert not np.array_equal(after.params["w"], narrow["w"])


def test_a_gradient_that_is_not_finite_adds_nothing_and_is_counted():
    features, targets = problem()
    trainer, weights = dp_sgd(loss, **SETTINGS), jnp.ones(BATCH)
    step = jax.jit(trainer.step)
    spoiled = features[:BATCH].at[3].set(jnp.nan), targets[:BATCH]
    after, info = step(KEY, trainer.init(PARAMS), spoiled, weights)
    without, _ = step(KEY, trainer.init(PARAMS), (features[:BATCH], targets[:BATCH]), weights.at[3].set(0))
    assert int(info.dropped) == 1
    np.testing.assert_allclose(after.params["w"], without.params["w"], rtol=1e-5)


@pytest.mark.integration
def test_training_learns_and_may_be_cut_anywhere():
    trainer, sampling = dp_sgd(loss, **changed(optimizer=optax.adam(0.1))), poisson(N, BATCH)
    whole, info = train(KEY, trainer, trainer.init(PARAMS), problem(), sampling, 60)
    part, _ = train(KEY, trainer, trainer.init(PARAMS), problem(), sampling, 20)
    rest = part
    for _ in range(2):
        rest, _ = train(KEY, trainer, rest, problem(), sampling, 20)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(rest), strict=True):
        np.testing.assert_array_equal(one, other)
    assert info.loss[-5:].mean() < 0.5 * info.loss[:5].mean()
    other, _ = train(jax.random.key(3), trainer, part, problem(), sampling, 20)
    assert not np.array_equal(other.params["w"], rest.params["w"])


def test_noise_of_another_shape_is_refused():
    """One number for a whole leaf would broadcast, and cancel in differences."""
    one_number = Noise(lambda params: (), lambda key, total, memory: (jax.tree.map(jnp.sum, total), memory))
    settings = {name: value for name, value in SETTINGS.items() if name != "noise_multiplier"}
    trainer = noisy_sums(loss, one_number, **settings)
    batch = jax.tree.map(lambda leaf: leaf[:BATCH], problem())
    with pytest.raises(AssertionError, match="shape"):
        trainer.step(KEY, trainer.init(PARAMS), batch, jnp.ones(BATCH))


@pytest.mark.parametrize("microbatch", [1, 5, 64])
def test_microbatches_change_memory_and_not_the_result(microbatch):
    """Of a batch whose padding is in the middle of a microbatch; the default is a quarter of it, 3."""
    batch, weights = jax.tree.map(lambda leaf: leaf[:BATCH], problem()), jnp.float32(jnp.arange(BATCH) < 7)
    (here, its), (there, others) = (
        jax.jit(trainer.step)(KEY, trainer.init(PARAMS), batch, weights)
        for trainer in (PLAIN, dp_sgd(loss, **SETTINGS, microbatch=microbatch))
    )
    np.testing.assert_allclose(here.params["w"], there.params["w"], rtol=1e-5)
    assert not np.allclose(here.params["w"], PARAMS["w"], rtol=1e-2)
    assert int(its.examples) == int(others.examples) == 7
    assert int(its.clipped) == int(others.clipped)


@pytest.mark.integration
def test_many_networks_at_once_are_the_same_as_one_by_one():
    """Over keys, data sets and clip norms at once."""
    sampling, keys, clips = poisson(N, BATCH), jax.random.split(KEY, 3), jnp.array([0.5, 1.0, 4.0])
    features, targets = problem(3 * N)
    data = features.reshape(3, N, D), targets.reshape(3, N)

    @jax.jit
    def one(key, data, clip_norm):
        trainer = dp_sgd(loss, **changed(clip_norm=clip_norm))
        return train(key, trainer, trainer.init(PARAMS), data, sampling, 10)[0].params["w"]

    together = jax.vmap(one)(keys, data, clips)
    alone = [one(keys[i], jax.tree.map(lambda leaf, i=i: leaf[i], data), clips[i]) for i in range(3)]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("microbatch", [3, 64])
def test_a_loss_with_dropout_gets_a_key_of_its_own_for_every_example(microbatch):
    def noisy(params, example, key):
        return params["w"][0] * jax.random.normal(key) + params["w"] @ example[0] * 0 + params["b"] * 0

    trainer = dp_sgd(noisy, **changed(noise_multiplier=1e-9, clip_norm=1e3), dropout=True, microbatch=microbatch)
    batch = jax.tree.map(lambda leaf: leaf[:BATCH], problem())
    step = jax.jit(jax.vmap(lambda key: trainer.step(key, trainer.init(PARAMS), batch, jnp.ones(BATCH))[0]))
    moved = step(jax.random.split(KEY, 200)).params["w"][:, 0]
    spread = 0.1 / BATCH * np.sqrt(BATCH)  # of independent normals; one key for all would give 0.1
    assert abs(np.std(moved) / spread - 1) < 4 / np.sqrt(2 * 200)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm: expected a finite number > 0, got 0.0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier: expected a finite number > 0, got -1.0"),
        ({"batch_size": 0}, "batch_size: expected a whole number >= 1, got 0"),
        ({"microbatch": 0}, "microbatch: expected a whole number >= 1, got 0"),
        ({"optimizer": 0.1}, "optimizer: expected an optax.GradientTransformation, got 0.1"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        dp_sgd(loss, **changed(**change))
    with pytest.raises(InputError, match=r"^loss_fn: expected a function, got None$"):
        dp_sgd(None, **changed())  # pyright: ignore[reportArgumentType]


def test_data_of_another_size_are_refused():
    trainer = dp_sgd(loss, **SETTINGS)
    with pytest.raises(InputError, match=r"data: expected leaves of 48 examples, as the sampling, got"):
        train(KEY, trainer, trainer.init(PARAMS), problem(N + 1), poisson(N, BATCH), 1)


@pytest.mark.parametrize("batch_size", [8, 13])
def test_a_sampling_of_another_batch_size_is_refused(batch_size):
    """Sums over one size divided by another would make steps longer or shorter."""
    with pytest.raises(InputError, match=f"^sampling: expected a sampling of batch size 12, as .*, got {batch_size}"):
        train(KEY, PLAIN, PLAIN.init(PARAMS), problem(), poisson(N, batch_size), 1)


def test_parameters_in_place_of_a_state_are_refused():
    with pytest.raises(InputError, match=r"^state: expected trainer.init\(params\), or the state of .*, got dict"):
        train(KEY, PLAIN, PARAMS, problem(), SAMPLING, 1)


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(InputError, match=r"^steps: expected a whole number >= 0, got -1"):
        train(KEY, PLAIN, PLAIN.init(PARAMS), problem(), SAMPLING, -1)
    state, info = train(KEY, PLAIN, PLAIN.init(PARAMS), problem(), SAMPLING, 0)
    assert (int(state.step), info.loss.shape) == (0, (0,))


def test_a_loss_of_the_whole_batch_is_refused():
    trainer = dp_sgd(lambda params, example: example[0] * params["w"] + params["b"], **SETTINGS)
    with pytest.raises(InputError, match="loss_fn: expected one floating-point number"):
        train(KEY, trainer, trainer.init(PARAMS), problem(), poisson(N, BATCH), 1)


@pytest.mark.integration
def test_an_accelerator_gathers_in_microbatches_and_trains_alike() -> None:
    """The same training, and a batch of images is formed nowhere but on a CPU."""
    images, labels = jax.random.normal(KEY, (40, 3, 4, 2)), jnp.arange(40) % 3

    def loss(params, example, key):
        image, label = example
        shown = image * jax.random.bernoulli(key, 0.5, image.shape)
        return jnp.square(jnp.tensordot(params, shown, 3) - label)

    how: dict[str, Any] = {"clip_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 8, "optimizer": optax.sgd(0.1)}
    trainer, sampling = dp_sgd(loss, dropout=True, **how), poisson(40, 8, capacity=20)
    found = []
    for kind in ("cpu", "tpu"):
        with _platform.named(kind):
            given = KEY, trainer, trainer.init(jnp.ones((3, 4, 2))), (images, labels), sampling, 2
            program = str(train.trace(*given).jaxpr)
            found.append((train(*given)[0].params, f"f32[{sampling.capacity},3,4,2]" in program))
    (here, whole), (there, still_whole) = found
    np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)
    assert (whole, still_whole) == (True, False)


@pytest.mark.integration
def test_fit_gives_the_memory_of_each_state_to_the_next_and_leaves_the_callers_arrays_alive():
    start, shown = PLAIN.init(PARAMS), []
    how = KEY, PLAIN, start, problem(), SAMPLING, 2
    planned: Any = module._train_on.lower(*how).compile().memory_analysis()
    assert planned.alias_size_in_bytes >= sum(leaf.nbytes for leaf in jax.tree.leaves(start.params))
    kept: Any = train.lower(*how).compile().memory_analysis()
    assert kept.alias_size_in_bytes == 0  # its caller may use the state once more

    def evaluate(params: Any) -> dict[str, float]:
        shown.append(params)
        return {}

    data = problem()
    module.fit(KEY, PLAIN, PARAMS, data, SAMPLING, 6, every=2, evaluate=evaluate)
    assert len(shown) == 3
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((PARAMS, data, shown)))


NARROW = [  # (clip norm, noise multiplier, deviation of the noise)
    (np.int8(100), 2, 200.0),
    (np.uint8(200), 2, 400.0),
    (np.uint8(200), np.uint8(2), 400.0),
    (jnp.int8(100), jnp.int8(3), 300.0),
    (np.float16(300), np.float16(300), 9e4),
    (np.float16(2**-10), np.float16(2**-17), 2.0**-27),
]


def stepped(clip_norm, noise_multiplier):
    how: dict[str, Any] = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier, "batch_size": 1}
    trainer = dp_sgd(jnp.vdot, **how, optimizer=optax.sgd(1.0))
    return trainer.step(KEY, trainer.init(jnp.zeros(5_000)), jnp.zeros((1, 5_000)), jnp.ones(1))[0].params


@pytest.mark.parametrize("clip_norm, noise_multiplier, deviation", NARROW)
def test_settings_of_narrow_types_have_the_noise_of_their_product(clip_norm, noise_multiplier, deviation):
    """In the type of both, 100 * 2 is -56 and 2^-27 is 0: too little noise, or none."""
    drawn = np.asarray(stepped(clip_norm, noise_multiplier), np.float64)
    assert drawn.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * 5_000))


def test_settings_of_narrow_types_that_are_traced_have_the_noise_of_their_product():
    traced = jax.jit(stepped)(jnp.int8(100), jnp.int8(2))
    np.testing.assert_allclose(traced, stepped(100.0, 2.0), rtol=1e-5)


def test_a_key_of_the_old_kind_trains_as_the_same_typed_one():
    typed, old = (
        train(key, PLAIN, PLAIN.init(PARAMS), problem(), SAMPLING, 1)[0] for key in (KEY, jax.random.PRNGKey(11))
    )
    np.testing.assert_array_equal(typed.params["w"], old.params["w"])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_an_optimizer_whose_state_has_the_type_of_the_parameters_trains_narrow_ones(dtype):
    narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)
    trainer = dp_sgd(loss, **changed(optimizer=optax.adafactor(0.1)))
    after, _ = train(KEY, trainer, trainer.init(narrow), problem(), SAMPLING, 2)
    assert after.params["w"].dtype == dtype
    assert np.isfinite(np.asarray(after.params["w"], np.float32)).all()
    assert {leaf.dtype for leaf in jax.tree.leaves(after.opt_state)} == {np.dtype("float32"), np.dtype("int32")}


def test_parameters_may_be_python_numbers_and_others_are_refused():
    trainer = dp_sgd(lambda p, example: p["w"] * example[0][0] + p["b"], **SETTINGS)
    found = [
        train(KEY, trainer, trainer.init(start), problem(), SAMPLING, 1)[0].params
        for start in ({"w": 0.5, "b": 0.0}, {"w": jnp.float32(0.5), "b": np.float32(0)})
    ]
    assert found[0] == found[1]
    with pytest.raises(InputError, match=r"^params\['w'\]: expected an array, the rest being apart .*, got function$"):
        trainer.init({"w": loss, "b": 0.0})
