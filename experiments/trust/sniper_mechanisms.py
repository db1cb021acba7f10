"""Defines the mechanisms of the DP-Sniper study as JAX functions ``fn(key, x)``, for one record.

Definitions, parameters and sentinels follow the study's own implementations (Bichsel, Steffen, Bogunovic, Vechev, IEEE
S&P 2021; repository eth-sri/dp-sniper, folder dpsniper/mechanisms), which in turn follow the papers named below. The
defaults are those of its evaluation (dpsniper/experiments/exp_default.py): epsilon 0.1, at most one TRUE (c = 1), and
threshold 1 (0.5 for SVT1). Inputs are vectors of query answers, each of which a neighbour may change by 1; for the
histograms one entry changes by 1; for Laplace, geometric and RAPPOR the input is one number.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

EPSILON = 0.1
FALSE, TRUE, ABORTED = 0, 1, -1
NO_VALUE, NO_MORE = -1000.0, -2000.0  # FALSE and ABORTED where TRUE is a number
FILTER_BITS, HASHES = 20, 4  # RAPPOR's Bloom filter


def laplace(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """x + Lap(1/epsilon), one number: x [1] -> []."""
    return x[0] + jax.random.laplace(key) / epsilon


def laplace_parallel(key: jax.Array, x: jax.Array, *, epsilon: float = 0.005, copies: int = 20) -> jax.Array:
    """``copies`` independent :func:`laplace` releases: x [1] -> [copies]; epsilon in all is copies * epsilon."""
    return x[0] + jax.random.laplace(key, (copies,)) / epsilon


def truncated_geometric_pmf(count: int, *, epsilon: float = EPSILON, people: int = 5) -> np.ndarray:
    """P[release = z | count] for z = 0 .. people, float64.

    Two-sided geometric noise on the count, P[j] proportional to r^|j|, with the tails heaped on 0 and people: with
    k = ceil(ln(2/epsilon)) and r = 2^k/(2^k + 1), the distribution function is r^(count-1-z)/(2 + 2^-k) below the
    count and 1 - r^(z-count)/(2 + 2^-k) from it on. It satisfies ln(1 + 2^-k), 0.118 at the default, not 0.1.
    Source: Balcer and Vadhan 2018, Algorithm 4.8 and Theorem 4.7.
    """
    power = 2.0 ** math.ceil(math.log(2 / epsilon))
    ratio, total = power / (power + 1), 2 + 1 / power
    z = np.arange(people)
    below, above = ratio ** np.maximum(count - 1 - z, 0), ratio ** np.maximum(z - count, 0)
    cumulative = np.where(z < count, below, total - above) / total
    return np.diff(cumulative, prepend=0.0, append=1.0)


def truncated_geometric(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, people: int = 5) -> jax.Array:
    """Returns a count in 0 .. people with truncated geometric noise: x [1], a whole number -> []."""
    laws = [truncated_geometric_pmf(count, epsilon=epsilon, people=people) for count in range(people + 1)]
    logits = jnp.asarray(np.log(laws), jnp.float32)[x[0].astype(int)]
    return jax.random.categorical(key, logits)


def noisy_hist1(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """x + Lap(1/epsilon) in every bin: x [n] -> [n]. Source: Ding et al., CCS 2018, Algorithm 9."""
    return x + jax.random.laplace(key, x.shape) / epsilon


def noisy_hist2(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """x + Lap(epsilon), the scale upside down: 1/epsilon-DP. Source: Ding et al., CCS 2018, Algorithm 10."""
    return x + jax.random.laplace(key, x.shape) * epsilon


def report_noisy_max1(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """argmax of x + Lap(2/epsilon): x [n] -> []. Source: Ding et al., CCS 2018, Algorithm 5."""
    return jnp.argmax(x + jax.random.laplace(key, x.shape) * (2 / epsilon))


def report_noisy_max2(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """argmax of x + Exp(2/epsilon): x [n] -> []. Source: Ding et al., CCS 2018, Algorithm 6."""
    return jnp.argmax(x + jax.random.exponential(key, x.shape) * (2 / epsilon))


def report_noisy_max3(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """Returns the largest noisy value itself, max of x + Lap(2/epsilon): n epsilon/2, not epsilon. Algorithm 7,
    ibid."""
    return jnp.max(x + jax.random.laplace(key, x.shape) * (2 / epsilon))


def report_noisy_max4(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """Returns the largest noisy value itself, max of x + Exp(2/epsilon): no finite epsilon, as it is >= max x.
    Algorithm 8."""
    return jnp.max(x + jax.random.exponential(key, x.shape) * (2 / epsilon))


def _above(
    key: jax.Array, x: jax.Array, threshold: float, threshold_scale: float, query_scale: float
) -> tuple[jax.Array, jax.Array]:
    """(noisy answers [n], which of them reach the noisy threshold [n]): one threshold for all queries."""
    threshold_key, query_key = jax.random.split(key)
    noisy = x + jax.random.laplace(query_key, x.shape) * query_scale
    return noisy, noisy >= threshold + jax.random.laplace(threshold_key) * threshold_scale


def _until_aborted(above: jax.Array, answers: jax.Array, cutoff: int, aborted: float) -> jax.Array:
    """Returns the answers, with ``aborted`` in the place of all that follow the ``cutoff``-th TRUE."""
    before = jnp.cumsum(above) - above
    return jnp.where(before >= cutoff, aborted, answers)


def svt1(
    key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, cutoff: int = 1, threshold: float = 0.5
) -> jax.Array:
    """Sparse vector technique, correct: x [n] -> [n] of TRUE, FALSE, ABORTED; epsilon-DP.

    Threshold noise Lap(2/epsilon), query noise Lap(4 cutoff/epsilon).
    Source: Lyu, Su and Li, VLDB 2017, Algorithm 1.
    """
    _, above = _above(key, x, threshold, 2 / epsilon, 4 * cutoff / epsilon)
    return _until_aborted(above, above.astype(int), cutoff, ABORTED)


def svt2(
    key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, cutoff: int = 1, threshold: float = 1.0
) -> jax.Array:
    """Sparse vector technique, correct, with a fresh threshold after every TRUE: x [n] -> [n]; epsilon-DP.

    Threshold noise Lap(2 cutoff/epsilon), query noise Lap(4 cutoff/epsilon).
    Source: Lyu, Su and Li, VLDB 2017, Algorithm 2.
    """
    threshold_key, query_key = jax.random.split(key)
    fresh = threshold + jax.random.laplace(threshold_key, (x.size + 1,)) * (2 * cutoff / epsilon)
    noisy = x + jax.random.laplace(query_key, x.shape) * (4 * cutoff / epsilon)

    def answer(current: jax.Array, query: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        value, following = query
        above = value >= current
        return jnp.where(above, following, current), above

    _, above = jax.lax.scan(answer, fresh[0], (noisy, fresh[1:]), unroll=True)
    return _until_aborted(above, above.astype(int), cutoff, ABORTED)


def svt3(
    key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, cutoff: int = 1, threshold: float = 1.0
) -> jax.Array:
    """Sparse vector technique that releases the noisy answer for TRUE: x [n] -> [n]; no finite epsilon.

    Threshold noise Lap(2/epsilon), query noise Lap(2 cutoff/epsilon). FALSE is -1000, ABORTED -2000.
    Source: Lyu, Su and Li, VLDB 2017, Algorithm 3.
    """
    noisy, above = _above(key, x, threshold, 2 / epsilon, 2 * cutoff / epsilon)
    return _until_aborted(above, jnp.where(above, noisy, NO_VALUE), cutoff, NO_MORE)


def svt4(
    key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, cutoff: int = 1, threshold: float = 1.0
) -> jax.Array:
    """Sparse vector technique with query noise that ignores the cutoff: x [n] -> [n]; (1 + 6 cutoff)/4 epsilon-DP.

    Threshold noise Lap(4/epsilon), query noise Lap(4/(3 epsilon)).
    Source: Lyu, Su and Li, VLDB 2017, Algorithm 4.
    """
    _, above = _above(key, x, threshold, 4 / epsilon, 4 / (3 * epsilon))
    return _until_aborted(above, above.astype(int), cutoff, ABORTED)


def svt5(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, threshold: float = 1.0) -> jax.Array:
    """Sparse vector technique without query noise, which never aborts: x [n] -> [n]; no finite epsilon.

    Threshold noise Lap(2/epsilon).
    Source: Lyu, Su and Li, VLDB 2017, Algorithm 5.
    """
    _, above = _above(key, x, threshold, 2 / epsilon, 0.0)
    return above.astype(int)


def svt6(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, threshold: float = 1.0) -> jax.Array:
    """Sparse vector technique that never aborts: x [n] -> [n]; epsilon grows with n, without a finite bound.

    Threshold noise Lap(2/epsilon), query noise Lap(2/epsilon).
    Source: Lyu, Su and Li, VLDB 2017, Algorithm 6.
    """
    _, above = _above(key, x, threshold, 2 / epsilon, 2 / epsilon)
    return above.astype(int)


def numerical_svt(
    key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, cutoff: int = 2, threshold: float = 1.0
) -> jax.Array:
    """Sparse vector technique whose TRUE is an answer with noise of its own: x [n] -> [n]; epsilon-DP.

    Threshold noise Lap(3/epsilon), query noise Lap(6 cutoff/epsilon), answer noise Lap(3 cutoff/epsilon). FALSE is 0,
    ABORTED -1000.
    Source: Wang et al., PLDI 2019.
    """
    key, answer_key = jax.random.split(key)
    _, above = _above(key, x, threshold, 3 / epsilon, 6 * cutoff / epsilon)
    answers = x + jax.random.laplace(answer_key, x.shape) * (3 * cutoff / epsilon)
    return _until_aborted(above, jnp.where(above, answers, 0.0), cutoff, NO_VALUE)


def svt34_parallel(
    key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON, cutoff: int = 2, threshold: float = 1.0
) -> jax.Array:
    """:func:`svt3` and :func:`svt4` on the same queries, side by side: x [n] -> [2 n]."""
    parts = zip((svt3, svt4), jax.random.split(key), strict=True)
    return jnp.concatenate([svt(key, x, epsilon=epsilon, cutoff=cutoff, threshold=threshold) for svt, key in parts])


def prefix_sum(key: jax.Array, x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
    """Running sums of x + Lap(1/epsilon): x [n] -> [n]; n epsilon where every answer may change by 1.
    Source: Wang et al., PLDI 2019.
    """
    return jnp.cumsum(noisy_hist1(key, x, epsilon=epsilon))


def murmur3(text: str, *, seed: int) -> int:
    """MurmurHash3 (x86, 32 bits) of UTF-8 text as a signed number.
    Source: Austin Appleby's public-domain definition.
    """
    data, state, word = text.encode(), seed, 0xFFFFFFFF
    for start in range(0, len(data), 4):
        part = data[start : start + 4]
        mixed = int.from_bytes(part, "little") * 0xCC9E2D51 & word
        state ^= (mixed << 15 | mixed >> 17) * 0x1B873593 & word
        if len(part) == 4:
            state = (state << 13 | state >> 19) & word
            state = (state * 5 + 0xE6546B64) & word
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ state >> shift) * factor & word
    return state - (1 << 32) if state >> 31 else state


def bloom_filter(value: int) -> np.ndarray:
    """Returns the bits that RAPPOR sets for a value, [20] of 0 and 1: one bit for each of 4 hashes; hashes may
    collide."""
    bits = np.zeros(FILTER_BITS, np.float32)
    for seed in range(HASHES):
        bits[murmur3(str(value), seed=seed) % FILTER_BITS] = 1
    return bits


def _bits(key: jax.Array, x: jax.Array, one_if_set: float, one_if_not: float) -> jax.Array:
    """Independent bits [20] of the filter of x [1], a whole number in -10 .. 10."""
    table = jnp.asarray(np.stack([bloom_filter(value) for value in range(-10, 11)]))
    chances = jnp.where(table[x[0].astype(int) + 10] > 0, one_if_set, one_if_not)
    return jax.random.bernoulli(key, chances).astype(jnp.float32)


def one_time_rappor(key: jax.Array, x: jax.Array, *, f: float = 0.95) -> jax.Array:
    """RAPPOR, Steps 1 and 2: x [1] -> [20] bits; a bit that is set stays 1 with probability 1 - f/2, others become 1
    with probability f/2. Two values whose filters differ in m bits: epsilon m ln((2 - f)/f).
    Source: Erlingsson, Pihur and Korolova, CCS 2014.
    """
    return _bits(key, x, 1 - f / 2, f / 2)


def rappor(key: jax.Array, x: jax.Array, *, f: float = 0.75, p: float = 0.45, q: float = 0.55) -> jax.Array:
    """RAPPOR, Steps 1 to 3: x [1] -> [20] bits; after Step 2 a 1 is reported as 1 with probability q, a 0 with p.
    Source: Erlingsson, Pihur and Korolova, CCS 2014.
    """
    return _bits(key, x, q * (1 - f / 2) + p * f / 2, p * (1 - f / 2) + q * f / 2)
