import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.noise import gaussian
from dpaudit.secure.protocol.fixed_point import Scale, largest, subgaussian_reach, with_binomial


@pytest.mark.parametrize("examples", [30, 3_000])
@pytest.mark.parametrize("multiplier", [0.472, 7.55, 377.6])
@pytest.mark.parametrize("coins", [127, 255])
def test_binomial_fits_whole_and_is_as_wide_as_wanted(examples: int, multiplier: float, coins: int) -> None:
    scale, noise = with_binomial(noise_multiplier=multiplier, examples=examples, clip_norm=1.0, coins=coins)
    assert multiplier <= noise.std / scale.levels <= multiplier * (1 + 1.01 / scale.levels)
    assert examples * scale.levels + noise.reach <= 2**24 - 1
    wider = 2 * noise.std / multiplier * examples + 2 * noise.reach
    assert wider > 2**24 - 1  # a step twice as wide, and the scale that goes with it, would not fit


def test_room_for_gaussian_noise() -> None:
    reach = subgaussian_reach(1e-3)
    scale = largest(examples=3, clip_norm=2.0, noise_multiplier=1.5, reach=reach, ring_bits=16)
    assert scale.room(3) >= reach * 1.5 * scale.levels > scale.room(3) - (3 + 1.5 * reach)
    assert scale.unit == 2.0 / scale.levels
    noise = gaussian.sample(round(1.5 * scale.levels), 50_000, Stream(bytes(16)).draw)
    assert np.mean(np.abs(noise) > scale.room(3)) < 1e-3
    assert np.mean(np.abs(noise) > scale.room(3) / 2) > 1e-2


def test_without_noise_the_sum_fills_the_ring() -> None:
    assert largest(examples=30, clip_norm=1.0, ring_bits=17) == Scale(1.0, (2**16 - 1) // 30, 17)
    assert largest(examples=1, clip_norm=1.0, ring_bits=32).levels == 1 << 24


@pytest.mark.parametrize(("epsilon", "wanted"), [(0.5, 0.25), (0.01, 12.6)])
def test_the_papers_scale_leaves_no_room_for_its_noise(epsilon: float, wanted: float) -> None:
    multiplier = gaussian.classical(epsilon=epsilon, delta=1e-3)
    papers = largest(examples=30, clip_norm=1.0, ring_bits=17)
    assert multiplier * papers.levels / 2**16 == pytest.approx(wanted, rel=0.01)
    assert papers.room(30) < 30
    ours, noise = with_binomial(noise_multiplier=multiplier, examples=30, clip_norm=1.0)
    assert ours.room(30) >= noise.reach > 11 * multiplier * ours.levels


def test_refusals() -> None:
    with pytest.raises(_validate.InputError, match="ring_bits: expected a ring with room for 1000 clip norms, got 10"):
        largest(examples=1_000, clip_norm=1.0, ring_bits=10)
    with pytest.raises(
        _validate.InputError, match="ring_bits: expected a ring with room for 30 examples and noise of 1e"
    ):
        with_binomial(noise_multiplier=1e9, examples=30, clip_norm=1.0)
    for tiny in (1e-9, 1e-300, 1e-310):
        with pytest.raises(_validate.InputError, match="noise_multiplier: expected at least ") as refused:
            with_binomial(noise_multiplier=tiny, examples=30, clip_norm=1.0)
    least = float(str(refused.value).split("at least ")[1].split(",")[0])
    assert with_binomial(noise_multiplier=least, examples=30, clip_norm=1.0)[1].step_bits == 1
    with pytest.raises(_validate.InputError, match="noise_multiplier: expected at least "):
        with_binomial(noise_multiplier=0.99 * least, examples=30, clip_norm=1.0)
    with pytest.raises(_validate.InputError, match="noise_multiplier: expected a finite number >= 0, got -1"):
        largest(examples=1, clip_norm=1.0, noise_multiplier=-1.0)
    with pytest.raises(_validate.InputError, match=r"coins: expected 2\^k - 1, at most 1023, got 128"):
        with_binomial(noise_multiplier=1.0, examples=1, clip_norm=1.0, coins=128)
