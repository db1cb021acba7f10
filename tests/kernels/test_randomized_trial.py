"""The trial that never writes its release: the shipped mechanism's words, sums and law, on every kind of chip."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.audits import oracle
from dpaudit.kernels import philox, randomized_trial
from dpaudit.kernels.randomized_trial import Chip
from dpaudit.mechanisms import ldp_sgd, sampling

DOUBTFUL = 1e-4  # a good generator fails one such test in 10,000; seeds are fixed, so it fails now or never
ABSURD = 1e-12
TRIALS, DIMENSION = 8192, 41  # 21 pairs in blocks of four, the last one half used: words are shifted within blocks
HOW = {"epsilon": 8.0, "clip_norm": 1.0}


def keys(count: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed, impl=philox.IMPL), count)


@partial(jax.jit, static_argnums=1)
def drawn(keys: jax.Array, d: int) -> jax.Array:
    """[n, d], by the shipped sampler."""
    return jax.vmap(lambda key: sampling.normal(key, (d,)))(keys)


def unit(*entries: tuple[int, float], d: int = DIMENSION) -> jax.Array:
    vector = np.zeros(d, np.float32)
    for place, value in entries:
        vector[place] = value
    return jnp.asarray(vector / np.linalg.norm(vector))


AXES = jnp.stack([unit((1, 1)), unit((5, 1))])  # pairs 1 and 5, the same words of two blocks
G0, G1 = unit((1, 1)), unit((1, 1), (5, 2))


@pytest.fixture(scope="module")
def interpreted() -> Callable[[jax.Array, Any], jax.Array]:
    """The TPU kernel on this machine, with chunks so short that there are two, the second one not full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomized_trial, "CHUNK", 4)
        kernel = partial(randomized_trial.products_tpu, interpret=True)
        program = str(jax.make_jaxpr(kernel)(keys(TRIALS), AXES))
        assert program.count("interpret=True") == 1
        assert "grid=(8, 2)" in program
        compiled = jax.jit(kernel).lower(keys(TRIALS), AXES).compile()
        return lambda keys, directions: compiled(keys, directions)


@pytest.mark.parametrize("half", [5, 7])  # between them rows begin with every word of a block
def test_words_are_those_of_the_shipped_sampler(half: int) -> None:
    key = jax.random.key(3, impl=philox.IMPL)
    numbers = jnp.arange(2, dtype=jnp.uint32)
    found = jax.jit(randomized_trial.words, static_argnums=2)(jax.random.key_data(key), numbers, half)
    by_pair = np.array(found).transpose(0, 2, 1).reshape(3, 8)[:, :half]
    np.testing.assert_array_equal(by_pair, jax.random.bits(key, (3, half)))


def test_sums_are_those_of_the_shipped_sampler() -> None:
    directions = jax.random.normal(jax.random.key(1), (2, DIMENSION))
    normals = drawn(keys(50), DIMENSION)
    expected = jnp.concatenate([jnp.sum(normals**2, axis=1, keepdims=True), normals @ directions.T], axis=1)
    np.testing.assert_allclose(randomized_trial.products(keys(50), directions), expected, rtol=2e-6, atol=2e-5)


@pytest.mark.integration
def test_kernel_draws_what_the_reference_draws(interpreted: Callable) -> None:
    normals = drawn(keys(TRIALS), DIMENSION)
    found = interpreted(keys(TRIALS), AXES)
    np.testing.assert_allclose(found[:, 1:], normals @ AXES.T, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[:, 0], jnp.sum(normals**2, axis=1), rtol=2e-6)


@pytest.mark.parametrize(
    "kernel", [randomized_trial.products_reference, randomized_trial.products_tpu, randomized_trial.products_gpu]
)
def test_cosines_are_of_32_bits_where_jax_computes_in_64(kernel: Any) -> None:
    with jax.enable_x64(True):
        pair = jnp.stack([G0, G1]).astype(jnp.float64)
        found = jax.eval_shape(lambda keys: randomized_trial.cosines(keys, pair, 1, **HOW, products=kernel), keys(3))
    assert (found.shape, found.dtype) == ((3, 2), jnp.float32)


@pytest.mark.integration
@pytest.mark.parametrize("d", [38, 39, 43, 45])  # between them rows begin with every word of a block
def test_kernel_draws_what_the_reference_draws_in_other_dimensions(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomized_trial, "CHUNK", 3)
    directions = jax.random.normal(jax.random.key(d), (3, d))
    found = randomized_trial.products_tpu(keys(70, d), directions, interpret=True)
    expected = randomized_trial.products_reference(keys(70, d), directions)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize(
    "kernel", [randomized_trial.products_reference, partial(randomized_trial.products_tpu, interpret=True)]
)
def test_each_row_of_words_is_that_of_the_shipped_sampler(
    row: int, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Low words change a normal in its last digits or not at all, so every row takes the normals' place in turn."""

    def by_word(*given: Any) -> tuple[jax.Array, jax.Array]:
        word = given[row].astype(jnp.float32) * 2.0**-32
        return word, -word

    half, own = 23, keys(30 + row)
    directions = jax.random.normal(jax.random.key(2), (2, 2 * half))
    monkeypatch.setattr(sampling, "box_muller", by_word)
    monkeypatch.setattr(randomized_trial, "CHUNK", 3)
    jax.clear_caches()  # of programs with the normals
    found = kernel(own, directions)
    jax.clear_caches()
    bits = jax.vmap(lambda key: jax.random.bits(key, (3, half)))(own)[:, row]
    normals = (
        jnp.concatenate([bits, bits], axis=1).astype(jnp.float32) * 2.0**-32 * jnp.repeat(jnp.array([1, -1]), half)
    )
    expected = jnp.concatenate([jnp.sum(normals**2, axis=1, keepdims=True), normals @ directions.T], axis=1)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize(("d", "before"), [(39, 0), (41, 2), (43, 1)])
def test_four_pairs_of_normals_take_three_ciphers(d: int, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the loop are traced once; before it, each row that does not begin with a block takes one."""
    drawn = []

    def cipher(key: Sequence[jax.Array], counter: Sequence[jax.Array]) -> philox.Words:
        drawn.append(counter)
        return philox.block(key, counter)

    monkeypatch.setattr(randomized_trial, "TPU", Chip(cipher=cipher))
    jax.make_jaxpr(randomized_trial.products_tpu)(keys(3), jnp.ones((2, d)))
    assert len(drawn) == before + 3


@pytest.mark.integration
@pytest.mark.parametrize("world", [0, 1])
def test_kernel_plays_the_trials_of_the_shipped_mechanism(world: int, interpreted: Callable) -> None:
    pair = jnp.stack([0.4 * G0, G1])
    releases = jax.jit(jax.vmap(lambda key: ldp_sgd.randomize(key, pair[world], **HOW)))(keys(TRIALS))
    found = randomized_trial.cosines(keys(TRIALS), pair, world, **HOW, products=interpreted)
    np.testing.assert_allclose(found, releases @ np.stack([G0, G1]).T, atol=1e-6)


def test_without_length_a_direction_is_the_first_axis() -> None:
    def nothing(keys: jax.Array, directions: jax.Array) -> jax.Array:
        return jnp.zeros((len(keys), 1 + len(directions)))

    first, both = unit((0, 1), d=2), unit((0, 1), (1, 1), d=2)
    found = randomized_trial.cosines(keys(TRIALS), jnp.stack([first, both]), 0, **HOW, products=nothing)
    np.testing.assert_allclose(np.abs(found), np.tile([1, np.sqrt(0.5)], (TRIALS, 1)), rtol=1e-6)


def test_a_pair_is_two_gradients() -> None:
    for wrong in (G0, jnp.stack([G0, G1, G1])):
        with pytest.raises(_validate.InputError, match=r"^pair: expected two gradients, \[2, d\], got shape \["):
            randomized_trial.cosines(keys(3), wrong, 0, epsilon=8.0, clip_norm=1.0)


def test_a_world_is_0_or_1() -> None:
    for wrong in (2, np.array([0, 1, -1])):
        with pytest.raises(_validate.InputError, match=r"^world: expected 0 or 1, got "):
            randomized_trial.cosines(keys(3), jnp.stack([G0, G1]), wrong, epsilon=8.0, clip_norm=1.0)


@pytest.mark.parametrize("platform, call", [("tpu", "tpu_custom_call"), ("cuda", "mosaic_gpu")])
def test_lowers_for_both_accelerators(platform: str, call: str) -> None:
    """As far as it goes on any machine: the kernel in its accelerator's dialect, which that one's compiler takes."""
    kind = {"tpu": "tpu", "cuda": "gpu"}[platform]
    lower = jax.export.export(jax.jit(randomized_trial.on(kind)), platforms=[platform])
    try:
        program = lower(keys(40), jnp.ones((2, 9000))).mlir_module()
    except ImportError as error:
        pytest.skip(f"this jaxlib has no Mosaic for {platform}: {error}")
    assert program.count(f"@{call}") == 1


@pytest.mark.slow
def test_gpu_kernel_interpreted() -> None:
    params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params", reason="no interpreter of Mosaic GPU")
    directions = jax.random.normal(jax.random.key(1), (2, 2500))  # two tiles
    found = randomized_trial.products_gpu(keys(3), directions, interpret=params.InterpretGPUParams())
    np.testing.assert_allclose(found, randomized_trial.products_reference(keys(3), directions), rtol=1e-5, atol=1e-4)


def test_square_root_of_a_chip_that_lacks_one() -> None:
    x = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-9, 90, 50)])
    np.testing.assert_allclose(randomized_trial.GPU.sqrt(x), jnp.sqrt(x), rtol=1e-6)


def test_what_is_refused() -> None:
    with pytest.raises(
        _validate.InputError, match=r"keys: expected Philox keys of shape \[n\], n >= 1, got key<fry>\[3\]"
    ):
        randomized_trial.products(jax.random.split(jax.random.key(0), 3), AXES)
    with pytest.raises(_validate.InputError, match=r"directions: expected an array of shape \[k, d\]"):
        randomized_trial.products(keys(3), AXES[0])


# Statistics. Each test maps sums over both axes, [n, 3], to a p-value: not doubtful for the chip, absurd for its twin.


def same_counter(key: Sequence[jax.Array], counter: Sequence[jax.Array]) -> philox.Words:
    return philox.block(key, (jnp.zeros_like(counter[0]), *counter[1:]))


TWINS = {
    "one round": Chip(cipher=partial(philox.block, rounds=1)),
    "one counter for all blocks": Chip(cipher=same_counter),
    "no square root": Chip(sqrt=lambda x: x),
}


def normal(sums: np.ndarray) -> float:
    return float(stats.kstest(sums[:, 1:].ravel(), "norm").pvalue)


def error_rates(sums: np.ndarray) -> float:
    """Both error rates of the cosine rule between G0 and G1 by these directions, against their closed form."""
    own = np.stack([sums[:, 1], (sums[:, 1] + 2 * sums[:, 2]) / np.sqrt(5)])
    rng, exact = np.random.default_rng(0), oracle.ldp_sgd_cosine(G0, G1, **HOW)
    values = []
    for world, rate in enumerate(exact):
        turned = rng.random(len(sums)) < ldp_sgd.far_side_probability(1.0, **HOW)
        z = np.where((own[world] >= 0) ^ turned, own, -own)
        wrong = (z[1] > z[0]) != (world == 1)
        values.append(stats.binomtest(int(wrong.sum()), len(sums), rate).pvalue)
    return 2 * min(values)


def independent(sums: np.ndarray) -> float:
    """Signs and sizes of both axes, and of one trial and the next."""
    first, second = sums[:, 1], sums[:, 2]
    values = [
        float(np.corrcoef(change(x), change(y))[0, 1] * np.sqrt(x.size))
        for x, y in ((first, second), (first[:-1], first[1:]), (first[:-1], second[1:]))
        for change in (np.sign, np.abs)
    ]
    return float(stats.chi2.sf(np.sum(np.square(values)), len(values)))


@pytest.mark.integration
@pytest.mark.parametrize(
    "p_value, twin",
    [
        (normal, "one round"),
        (normal, "no square root"),
        (independent, "one counter for all blocks"),
        (error_rates, "one round"),
        (error_rates, "one counter for all blocks"),
        (error_rates, "no square root"),
    ],
)
def test_law(p_value: Callable[[np.ndarray], float], twin: str, interpreted: Callable, twins: dict) -> None:
    assert p_value(np.asarray(interpreted(keys(TRIALS, 7), AXES))) > DOUBTFUL
    assert p_value(twins[twin]) < ABSURD


@pytest.fixture(scope="module")
def twins() -> dict[str, np.ndarray]:
    return {
        name: np.asarray(randomized_trial.products_reference(keys(TRIALS, 7), AXES, chip=chip), np.float64)
        for name, chip in TWINS.items()
    }


@pytest.mark.slow
def test_stream_at_length() -> None:
    """2^24 normal pairs of one key: bits at both ends of words, neighbours, and tails to five deviations."""
    key, half = jax.random.key(11, impl=philox.IMPL), 2**24 + 1
    draw = jax.jit(randomized_trial.words, static_argnums=2)
    numbers = jnp.arange(2**22, dtype=jnp.uint32)
    drawn = np.array(draw(jax.random.key_data(key), numbers, half))  # [3, 4, 2^22]
    by_pair = drawn.transpose(0, 2, 1).reshape(3, -1)
    for row in by_pair:
        for bits in (row >> 24, row & 0xFF, (row >> 28) << 4 | row & 0xF):
            assert stats.chisquare(np.bincount(bits, minlength=256)).pvalue > DOUBTFUL
        serial = (row[:-1:2] >> 28) << 4 | row[1::2] >> 28
        assert stats.chisquare(np.bincount(serial, minlength=256)).pvalue > DOUBTFUL
    across = (by_pair[0] >> 28) << 4 | by_pair[2] >> 28
    assert stats.chisquare(np.bincount(across, minlength=256)).pvalue > DOUBTFUL
    high, low, angle = (jnp.asarray(row) for row in by_pair)
    normals = np.stack(sampling.box_muller(high, low, angle, jnp.float32))
    assert tails(normals) > DOUBTFUL
    assert tails(1.01 * normals) < ABSURD
    lagged = [np.corrcoef(normals[0, :-lag], normals[1, lag:])[0, 1] for lag in (1, 2, 3, 4)]
    assert np.max(np.abs(lagged)) < 5 / np.sqrt(normals.shape[1])


def tails(normals: np.ndarray) -> float:
    """Counts beyond 3, 4 and 5 deviations on either side against their exact probabilities."""
    values = [
        float(stats.binomtest(int(np.sum(side * normals > bound)), normals.size, float(stats.norm.sf(bound))).pvalue)
        for side in (1, -1)
        for bound in (3.0, 4.0, 5.0)
    ]
    return len(values) * min(values)
