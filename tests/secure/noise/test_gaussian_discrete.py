import numpy as np
import pytest
from scipy import stats

from dpaudit import _validate
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.noise.gaussian import _below, sample

COUNT = 200_000


def chi_square(values: np.ndarray, sigma: float) -> float:
    edge = int(4 * sigma)
    z = np.arange(-40 * int(sigma) - 40, 40 * int(sigma) + 41)
    law = np.exp(-(z**2) / (2 * sigma**2))
    inside = np.abs(z) <= edge
    expected = np.append(law[inside], law[~inside].sum()) / law.sum() * len(values)
    kept = values[np.abs(values) <= edge]
    observed = np.append(np.bincount(kept + edge, minlength=2 * edge + 1), len(values) - len(kept))
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("sigma", [1, 3, 20])
def test_samples_follow_the_exact_law(sigma: int) -> None:
    values = sample(sigma, COUNT, Stream(bytes([sigma] * 16)).draw)
    assert values.shape == (COUNT,)
    assert chi_square(values, sigma) > 1e-4
    assert chi_square(values, 1.02 * sigma) < 1e-4
    assert chi_square(np.append(values[values != 0], [0] * (2 * (values == 0).sum())), sigma) < 1e-9  # -0 kept


@pytest.mark.parametrize("sigma", [1_000, 1 << 24])
def test_wide_noise(sigma: int) -> None:
    """It is practically continuous here; the widest has the largest products in 64 bits."""
    values = sample(sigma, COUNT // 2, Stream(bytes(16)).draw) / sigma
    assert stats.kstest(values, stats.norm.cdf).pvalue > 1e-4
    assert stats.kstest(values, stats.norm(0, 1.06).cdf).pvalue < 1e-4


def test_the_operating_system_is_the_default_source() -> None:
    assert (sample(1_000, 8) != sample(1_000, 8)).any()


@pytest.mark.parametrize("sigma", [0, 2.5, (1 << 24) + 1])
def test_refuses_other_sigmas(sigma: float) -> None:
    with pytest.raises(_validate.InputError, match="sigma: expected a whole number"):
        sample(sigma, 1)  # pyright: ignore[reportArgumentType]


def test_words_that_would_favour_small_numbers_are_drawn_again() -> None:
    """2^64 = 1 mod 3 and = 4 mod 12: the first word below is rejected and another drawn, so all are equally likely."""
    words = iter(np.array([[0, 3, 4], [5, 11, 0]], np.uint64))

    def source(count: int) -> bytes:
        return next(words)[: count // 8].tobytes()

    np.testing.assert_array_equal(_below(np.array([3, 12, 12], np.uint64), source), [2, 11, 4])
