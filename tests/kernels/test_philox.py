"""The generator against published vectors, a second implementation in Python integers, and statistics with power."""

import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpaudit import _platform, _validate
from dpaudit.kernels import philox
from dpaudit.mechanisms import ldp_sgd
from tests.processes import environment

DOUBTFUL = 1e-4  # a good generator fails one such test in 10,000; seeds are fixed, so it fails now or never
ABSURD = 1e-12


def reference(key: list[int], counter: list[int], rounds: int = 10) -> list[int]:
    """Philox-4x32 in Python integers, from the definition."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for i in range(rounds):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        round_key = (k0 + i * 0x9E3779B9) % 2**32, (k1 + i * 0xBB67AE85) % 2**32
        c0, c1 = (right // 2**32) ^ c1 ^ round_key[0], right % 2**32
        c2, c3 = (left // 2**32) ^ c3 ^ round_key[1], left % 2**32
    return [c0, c1, c2, c3]


def words_of(values: list[int]) -> list[jax.Array]:
    return [jnp.uint32(value) for value in values]


block = jax.jit(philox.block, static_argnames="rounds")


def a_key(seed: int = 0) -> jax.Array:
    return jax.random.key(seed, impl=philox.IMPL)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ("00000000 00000000", "00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff", "ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("a4093822 299f31d0", "243f6a88 85a308d3 13198a2e 03707344", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_published_vectors(key: str, counter: str, expected: str) -> None:
    key_words, counter_words, answer = ([int(word, 16) for word in text.split()] for text in (key, counter, expected))
    assert [int(word) for word in block(words_of(key_words), words_of(counter_words))] == answer
    assert reference(key_words, counter_words) == answer


def test_products_of_halves_are_exact() -> None:
    x = np.concatenate([np.arange(3), 2**32 - 1 - np.arange(3), np.random.default_rng(0).integers(0, 2**32, 2**12)])
    for multiplier in (np.uint32(0xD2511F53), np.uint32(0xCD9E8D57), np.uint32(0xFFFFFFFF)):
        exact = x.astype(np.uint64) * np.uint64(multiplier)
        for multiply in (philox.by_halves, philox.widening):
            high, low = multiply(multiplier, jnp.asarray(x.astype(np.uint32)))
            np.testing.assert_array_equal(high, exact >> np.uint64(32))
            np.testing.assert_array_equal(low, exact & np.uint64(0xFFFFFFFF))


def test_bits_are_consecutive_blocks_and_prefix_stable() -> None:
    k0, k1, c2, c3 = (int(word) for word in jax.random.key_data(a_key(3)))
    stream = np.array([reference([k0, k1], [i, 0, c2, c3]) for i in range(17)], np.uint32).reshape(-1)
    for size in (0, 1, 4, 65):
        np.testing.assert_array_equal(jax.random.bits(a_key(3), (size,)), stream[:size])
    np.testing.assert_array_equal(jax.random.bits(a_key(3), (3, 5)), stream[:15].reshape(3, 5))
    for dtype in (jnp.uint8, jnp.uint16):
        narrow = stream.astype("<u4").view(np.dtype(dtype).newbyteorder("<"))
        np.testing.assert_array_equal(jax.random.bits(a_key(3), (67,), dtype), narrow[:67])
    with jax.enable_x64(True):
        wide = stream.astype("<u4").view("<u8")
        np.testing.assert_array_equal(jax.random.bits(a_key(3), (9,), jnp.uint64), wide[:9])


def test_children_come_from_blocks_that_are_never_bits() -> None:
    parent = a_key(5)
    k0, k1, c2, c3 = (int(word) for word in jax.random.key_data(parent))
    folded = jax.vmap(lambda i: jax.random.fold_in(parent, i))(jnp.arange(50_000))
    split = jax.random.split(parent, (25_000, 2))
    assert jax.random.key_data(folded)[7].tolist() == reference([k0, k1], [7, 2**31, c2, c3])
    assert jax.random.key_data(split)[3, 1].tolist() == reference([k0, k1], [7, 2**31 + 1, c2, c3])
    children = [np.asarray(jax.random.key_data(keys)).reshape(-1, 4) for keys in (folded, split)]
    blocks = np.asarray(jax.random.bits(parent, (50_000, 4)))
    everything = np.concatenate([*children, blocks])
    assert len(np.unique(everything, axis=0)) == 150_000
    first_word_collisions = 150_000 - len(np.unique(everything[:, 0]))
    assert first_word_collisions < 10  # 150,000^2 / 2^33 = 2.6 expected of random words


def test_x64_mode_changes_nothing() -> None:
    def everything(seed: int) -> list[np.ndarray]:
        key = a_key(seed)
        keys = [key, jax.random.fold_in(key, 9), *jax.random.split(key)]
        draws = [jax.random.bits(key, (11,), dtype) for dtype in (jnp.uint8, jnp.uint16, jnp.uint32)]
        draws.append(jax.random.normal(key, (11,), jnp.float32))
        return [np.asarray(array) for array in [*map(jax.random.key_data, keys), *draws]]

    for seed in (1, -1):
        narrow = everything(seed)
        with jax.enable_x64(True):
            wide = everything(seed)
        for left, right in zip(narrow, wide, strict=True):
            np.testing.assert_array_equal(left, right)
    with jax.enable_x64(True):
        assert (jax.random.key_data(a_key(1)) != jax.random.key_data(a_key(1 + 2**32))).any()


def test_transformations_change_nothing() -> None:
    keys = jax.random.split(a_key(1), 6)

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.bits(jax.random.fold_in(key, 2), (7,))

    one_by_one = np.stack([draw(key) for key in keys])
    for batched in (
        jax.vmap(draw)(keys),
        jax.jit(jax.vmap(draw))(keys),
        jax.lax.map(draw, keys),
        jax.lax.map(draw, keys, batch_size=4),
        jax.lax.scan(lambda carry, key: (carry, draw(key)), 0, keys)[1],
    ):
        np.testing.assert_array_equal(batched, one_by_one)


@pytest.mark.integration
def test_the_form_for_an_accelerator_changes_no_bit() -> None:
    def everything(key: jax.Array) -> list[jax.Array]:
        children = [jax.random.fold_in(key, 9), *jax.random.split(key, (2, 3)).reshape(-1)]
        draws = [jax.random.bits(key, shape) for shape in [(), (5,), (3, 7), (64,)]]
        draws += [jax.random.bits(key, (11,), dtype) for dtype in (jnp.uint8, jnp.uint16)]
        return [*map(jax.random.key_data, children), *draws]

    keys = jax.random.split(a_key(8), 3)
    found = {}
    for kind in ("cpu", "gpu", "tpu"):
        with _platform.named(kind):
            lowered = jax.jit(jax.vmap(everything)).lower(keys)
            found[kind] = lowered.compile()(keys), "stablehlo.reduce" in lowered.as_text()
    assert [one_loop for _, one_loop in found.values()] == [True, False, False]
    for kind in ("gpu", "tpu"):
        jax.tree.map(np.testing.assert_array_equal, found["cpu"][0], found[kind][0])


@pytest.mark.integration
def test_two_devices_change_nothing() -> None:
    program = """if True:
        import jax, numpy as np
        from dpaudit.kernels import philox
        keys = jax.random.split(jax.random.key(0, impl=philox.IMPL), 4)
        draw = jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, 1), (5,)))
        mesh = jax.make_mesh((2,), ("trial",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec("trial")
        sharded = jax.jit(jax.shard_map(draw, mesh=mesh, in_specs=spec, out_specs=spec))(keys)
        assert len(sharded.sharding.device_set) == 2
        np.testing.assert_array_equal(sharded, draw(keys))
        print("equal")
    """
    finished = subprocess.run([sys.executable, "-c", program], env=environment(2), capture_output=True, text=True)
    assert finished.stdout == "equal\n", finished.stderr


def test_from_key() -> None:
    keys = jax.random.split(jax.random.key(0), (2, 3))
    derived = philox.from_key(keys)
    assert derived.shape == (2, 3)
    assert jax.random.key_impl(derived) == philox.IMPL
    np.testing.assert_array_equal(jax.random.key_data(derived)[1, 2], jax.random.bits(keys[1, 2], (4,)))
    with pytest.raises(
        _validate.InputError, match=r"key: expected a typed key, as made by jax\.random\.key, got Array"
    ):
        philox.from_key(jnp.zeros(2, jnp.uint32))


def test_a_mechanism_runs_unchanged() -> None:
    randomize = jax.jit(lambda key, x: ldp_sgd.randomize(key, x, epsilon=1.0, clip_norm=1.0))
    release = randomize(philox.from_key(jax.random.key(1)), jnp.ones(9))
    assert release.shape == (9,)
    np.testing.assert_allclose(np.linalg.norm(release), 1, rtol=1e-6)


def test_too_many_words_are_refused() -> None:
    with pytest.raises(_validate.InputError, match="shape: expected at most 17179869184 random words from one key"):
        jax.jit(lambda key: jax.random.bits(key, (2**34 + 1,))).lower(a_key())


# Statistics. Each test maps a block function to a p-value: not doubtful for ten rounds, absurd for the twin.

Cipher = Callable[[jax.Array, jax.Array, jax.Array], np.ndarray]


def cipher(rounds: int, *, constant_counter: bool = False) -> Cipher:
    """(k0, c0, c2) -> [n, 4] words."""

    def blocks(k0: jax.Array, c0: jax.Array, c2: jax.Array) -> np.ndarray:
        zero = jnp.uint32(0)
        counter = (jnp.zeros_like(c0) if constant_counter else c0, zero, c2, zero)
        return np.stack(block((k0, zero), counter, rounds=rounds), axis=-1)

    return blocks


def same_bytes(blocks: Cipher) -> float:
    words = blocks(jnp.uint32(0), jnp.arange(2**16, dtype=jnp.uint32), jnp.uint32(0))
    counts = np.stack([np.bincount(column, minlength=256) for column in words.view(np.uint8).reshape(-1, 16).T])
    return float(stats.chisquare(counts.reshape(-1), np.full(counts.size, 2**16 / 256), ddof=15).pvalue)


def independent_neighbours(blocks: Cipher, step_of: str) -> float:
    """Every output bit flips with probability 1/2, and no two flip together, when one input word grows by one."""
    n = 2**13
    start = jnp.arange(n, dtype=jnp.uint32) * jnp.uint32(2)
    inputs = [start if name in ("c0", step_of) else jnp.uint32(0) for name in ("k0", "c0", "c2")]
    stepped = [x + jnp.uint32(name == step_of) for name, x in zip(("k0", "c0", "c2"), inputs, strict=True)]
    flips = blocks(*inputs) ^ blocks(*stepped)
    signs = 1 - 2.0 * np.unpackbits(flips.view(np.uint8), axis=1)  # [n, 128]
    flip_scores = signs.sum(axis=0) / np.sqrt(n)
    pair_scores = (signs.T @ signs)[np.triu_indices(128, 1)] / np.sqrt(n)
    scores = np.concatenate([flip_scores, pair_scores])
    return float(stats.chi2.sf((scores**2).sum(), scores.size))


@pytest.mark.parametrize("twin", [cipher(1), cipher(2), cipher(10, constant_counter=True)])
def test_bytes_are_uniform(twin: Cipher) -> None:
    assert same_bytes(cipher(10)) > DOUBTFUL
    assert same_bytes(twin) < ABSURD


@pytest.mark.parametrize("step_of", ["c0", "c2", "k0"])
def test_neighbours_are_independent(step_of: str) -> None:
    assert independent_neighbours(cipher(10), step_of) > DOUBTFUL
    assert independent_neighbours(cipher(3), step_of) < ABSURD


def test_normals_follow_the_normal_law() -> None:
    draws = np.asarray(jax.random.normal(a_key(2), (2**18,)), np.float64)
    assert stats.kstest(draws, "norm").pvalue > DOUBTFUL
    assert stats.kstest(1.05 * draws, "norm").pvalue < ABSURD
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / np.sqrt(draws.size)


def test_normals_reach_their_tails() -> None:
    bounds = 4.0, 5.0

    def tails(dtype: jnp.dtype, draws: int) -> list[float]:
        """p-values of the numbers of draws beyond +- each bound."""
        sizes = np.abs(np.asarray(jax.random.normal(a_key(4), (draws,), dtype)))
        seen = [int((sizes > bound).sum()) for bound in bounds]
        chances = [float(2 * stats.norm.sf(bound)) for bound in bounds]
        return [float(stats.binomtest(*one).pvalue) for one in zip(seen, [draws] * 2, chances, strict=True)]

    assert min(tails(jnp.dtype("float32"), 2**24)) > DOUBTFUL  # 1,063 and 9.6 expected
    assert tails(jnp.dtype("float16"), 2**20)[0] < ABSURD  # 10 random bits end at 3.49, where 66 are expected
