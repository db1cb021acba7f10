"""Every public program is compiled for accelerators that are not at hand, and held to the contract.

`make accelerators` runs all of it, an hour on two cores; `make integration` runs the quick part where the wheels are
at hand. Bounds that are asserted here are of compiled programs; none is a time.
"""

import math
from typing import Any

import pytest

from experiments.bench import accelerators, hlo
from experiments.bench.accelerator_programs import PROGRAMS, STEPS
from tests.accelerators.conftest import machine
from tests.accelerators.contract import EXCHANGED, PADDING, breaches

QUICK = {("full, d = 26,010", "h100"), ("kernel of an H100", "h100"), ("kernel of a TPU", "v5e")}
MESHES = ("h100:1x2x4", "v5e:2x2", "h100:1x128x8", "v5p:8x16x16")
KIND = {"h100": "gpu", "v5e": "tpu", "v6e": "tpu"}
ON_CHIPS = [(name, chip) for name, own in PROGRAMS.items() for chip in KIND if own.only in (None, KIND[chip])]
ON_MESHES = [(name, mesh) for name, own in PROGRAMS.items() for mesh in MESHES if own.scales]
# Arrays that a TPU pads more, by the program: what is known to fall short.
PADDED = {"audit, portfolio": 64.0, "64 networks, CNN28 x 64": 64.0, "user sums": 5.0}
PADDED |= {"federated round, 1,000 x 5": 5.5, "user solves": 8.0}
REDUCED = "federated round, 1,000 x 5"
# Every device has the networks of all at the end: eight arrays of parameters, of which XLA gathers some together.
GATHERED = {"64 networks, CNN28 x 64": 8}
# Where XLA gathers by adding up: each of 2,048 devices puts its own rows into zeros. Of the five sums one is of four
# arrays.
ADDED = {("64 networks, CNN28 x 64", "v5p:8x16x16"): {"all-reduce": 5, "all-gather": 0}}


def marked(name: str, where: str) -> Any:
    mark = pytest.mark.integration if (name, where) in QUICK else pytest.mark.slow
    return pytest.param(name, where, marks=mark)


def held(name: str, where: str, exchanged: dict[str, int] | None = None) -> hlo.Program:
    """Compiles a program, and asserts what holds of all."""
    subject = PROGRAMS[name]
    _, _, program, plan = accelerators.compiled(machine(where), subject)
    how: dict[str, Any] = {"counts": subject.counts, "padding": PADDED.get(name, PADDING), "exchanged": exchanged}
    assert breaches(program, **how, known=where.startswith("h100")) == []
    assert plan.temp_size_in_bytes <= subject.ceiling
    return program


@pytest.mark.parametrize(("name", "chip"), [marked(*case) for case in ON_CHIPS])
def test_on_one_device(name: str, chip: str) -> None:
    assert hlo.collectives(held(name, chip, exchanged={})) == {}


@pytest.mark.parametrize(("name", "mesh"), [marked(*case) for case in ON_MESHES])
def test_on_many_devices(name: str, mesh: str) -> None:
    gathered = GATHERED.get(name, 1)
    exchanged = ADDED.get((name, mesh), EXCHANGED | {"all-gather": gathered})
    found = hlo.collectives(held(name, mesh, exchanged))
    if name == REDUCED:
        assert found["all-reduce"] == 1
    else:
        assert sum(found.values()) <= gathered


@pytest.mark.integration
def test_full_moves_at_most_700_mb_per_1024_trials() -> None:
    traced, _, program, _ = accelerators.compiled(machine("h100"), PROGRAMS["full, d = 26,010"])
    assert 1024 * hlo.moved(program) / math.prod(traced.out_info.shape) < 700e6


@pytest.mark.slow
def test_a_federated_round_launches_under_200_kernels() -> None:
    program = held("federated round, 1,000 x 5", "h100")
    assert 20 < hlo.kernels(program) / STEPS < 200


@pytest.mark.slow
def test_a_clipped_sum_moves_about_two_and_a_half_times_the_bytes_of_a_plain_gradient() -> None:
    moved = [hlo.moved(held(f"{name}, CNN32 x 1,024", "h100")) for name in ("clipped sum", "plain gradient")]
    assert moved[0] < 2.6 * moved[1]


@pytest.mark.slow
def test_dropout_takes_all_images_at_once_on_an_h100() -> None:
    program = held("dropout, 1,000 samples", "h100")
    assert max([loop.trips or 0 for loop in hlo.loops(program)], default=0) <= 1
