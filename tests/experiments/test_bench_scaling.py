"""Exponents and estimates from a few measured times are those of the law that the times follow."""

import numpy as np
import pytest

from dpaudit import data
from experiments import bench_gpu, bench_scaling, bench_scaling_section
from experiments.common import Rows

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


def test_as_many_devices_as_are_asked_for():
    assert bench_scaling.first(1).size == 1
    with pytest.raises(ValueError, match="reshape"):
        bench_scaling.first(1_000)


def test_a_panel_for_each_curve_that_was_measured(tmp_path):
    rows = Rows("", "bench_scaling", str(tmp_path), 0)
    names = ["clients", "devices, trials"]
    for name in names:
        sizes, same = bench_scaling.QUICK[name]
        slope = -1 if name.startswith("devices") else 1
        times = [[size**slope, 1.1 * size**slope, 0.9 * size**slope] for size in sizes]
        for size, values in zip(sizes, times, strict=True):
            rows.spread(f"{name}: seconds", {"size": size, "same": same}, values, scale="three rounds")
    figure = bench_scaling_section.scaling_figure(rows.rows, names)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 2
    for axes, name in zip(shown, names, strict=True):
        measured, straight = (line.get_xydata() for line in axes.get_lines()[::3] if line is not None)
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert axes.get_xlabel() == bench_scaling_section.WORDS[name][0]
        np.testing.assert_allclose(np.asarray(measured), np.asarray(straight))  # these times follow the straight line
    assert bench_scaling_section.WORDS.keys() == bench_scaling.SCALES.keys() == bench_scaling.QUICK.keys()
    assert bench_scaling.SIDES.keys() == bench_scaling.SCALES.keys()


def test_work_that_another_number_of_devices_does_otherwise_ends_the_benchmark():
    sizes, same = bench_scaling.QUICK["trials"]
    once, again, other = (bench_scaling.trials(pairs, same) for pairs in (sizes[0], sizes[0], 2 * sizes[0]))
    bench_scaling.refuse_other_results({"1": once, "2": again})
    with pytest.raises(AssertionError, match="sides that compute different things"):
        bench_scaling.refuse_other_results({"1": once, "2": lambda: other()[..., sizes[0] :]})
