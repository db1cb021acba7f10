"""Exponents and estimates from a few measured times are those of the law that the times follow."""

import numpy as np
import pytest

from dpaudit import data
from experiments.bench import gpu as bench_gpu
from experiments.bench import scaling as bench_scaling

SIZES = (10, 100, 1_000)


def test_exponents_are_those_of_a_power_law_and_of_its_end():
    times = [[3 * size**1.5, 7 * size**0.5] for size in SIZES]
    for slopes in bench_scaling.exponents(SIZES, times).values():
        np.testing.assert_allclose(slopes, [1.5, 0.5])
    bent = [[max(100.0, size)] for size in SIZES]  # what a call costs by itself
    found = bench_scaling.exponents(SIZES, bent)
    assert found["all"] == pytest.approx([0.5])
    assert found["end"] == pytest.approx([1.0])


def test_a_training_is_what_begins_it_and_its_steps():
    begin, step = np.array([2.0, 3.0]), np.array([0.1, 0.2])
    each, whole = bench_gpu.extrapolated((4, 24), [begin + 4 * step, begin + 24 * step], 11_718)
    np.testing.assert_allclose(each, step)
    np.testing.assert_allclose(whole, begin + 11_718 * step)


def test_images_of_noise_are_read_as_cifar10(tmp_path):
    bench_gpu.noise_images(tmp_path, 0)
    found = data.load("cifar10", split="test", data_dir=tmp_path)
    assert found.inputs.shape == (10_000, 32, 32, 3)
    assert len(np.unique(np.asarray(found.labels))) == 10
    assert abs(np.asarray(found.inputs[:100]).std() - np.sqrt(1 / 12)) < 0.01  # uniform; far beyond its standard error


def test_every_curve_has_sizes_and_a_side():
    assert bench_scaling.SIDES.keys() == bench_scaling.SCALES.keys() == bench_scaling.QUICK.keys()
