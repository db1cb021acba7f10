"""The benchmark of the two servers counts what it says it counts."""

import numpy as np
import pytest

from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import in_process, transfer_noise
from experiments.bench import secure as bench_secure
from experiments.bench import secure_noise as bench_secure_noise
from experiments.common import Rows


@pytest.mark.parametrize(("mode", "depth"), [("noisy", 1), ("noisy", 4), (bench_secure.TABLE, 1)])
def test_the_bytes_of_a_step_are_those_of_its_messages(tmp_path, mode, depth):
    mine = bench_secure.terms(mode, 640, depth)
    first, second = in_process.together(
        in_process.channels(),
        lambda channel: bench_secure.timed(channel, "h1", str(tmp_path / "h1"), mine, 2),
        lambda channel: bench_secure.timed(channel, "h2", str(tmp_path / "h2"), mine, 2),
    )
    assert first["bytes"] == second["bytes"]
    assert first["bytes"] / 640 == pytest.approx(sum(mine.opening().payload_bytes(depth).values()), rel=1e-3)
    assert len(first["steps"]) == len(second["steps"]) == 2


def test_a_gate_is_32_bytes(tmp_path):
    rows = Rows("001", "bench_secure", str(tmp_path), 0)
    bench_secure.gates(rows, 64, 1)
    found = {row["quantity"]: row["ours"] for row in rows.rows}
    assert found["bytes_an_and"] == 32
    assert found.keys() == {"ands_per_second", "bytes_an_and", "cots_per_second"}


def test_noise_by_either_way_costs_what_its_messages_do(tmp_path):
    rows = Rows("001", "bench_secure", str(tmp_path), 0)
    mine = bench_secure.terms("noisy", 640, 1)
    bench_secure_noise.noises(rows, mine, {1: "IKNP", 4: "SoftSpoken"}, 1)
    assert [row["quantity"] for row in rows.rows] == ["noise_seconds", "noise_bytes"] * 4
    law = mine.opening().noise
    assert isinstance(law, Binomial)
    for row in rows.rows[1::2]:
        depth = {"IKNP": 1, "SoftSpoken": 4}[row["setting"]["transfers"]]
        by_circuit = sum(mine.opening().payload_bytes(depth).values())
        transfers = transfer_noise.by_transfers(law, ring_bits=mine.ring_bits)
        alone = sum(transfer_noise.payload_bytes(transfers, depth=depth).values())
        wanted = by_circuit if row["setting"]["noise"] == "circuit" else alone
        assert row["ours"] == pytest.approx(wanted, rel=0.01)
    assert all(row["ours"] > 0 for row in rows.rows)


def test_noise_of_another_law_ends_the_benchmark():
    law, draw = Binomial(coins=127, step_bits=3), np.random.default_rng(0)
    uniforms = draw.integers(0, law.step, (2, 4_000)).sum(axis=0) - (law.step - 1)
    noise = law.step * draw.binomial(127, 0.5, 4_000) - law.step * 127 // 2 + uniforms
    bench_secure_noise.refuse_another_law(noise, law)
    for wrong in (1.2 * noise, noise + 6):
        with pytest.raises(AssertionError, match="noise of another law: "):
            bench_secure_noise.refuse_another_law(wrong, law)


def test_the_paper_s_table_has_terms_of_its_own():
    made = bench_secure.terms(bench_secure.TABLE, 182, 1)
    assert (made.noise, made.ring_bits, made.ahead) == ("table", 17, 0)
    assert bench_secure.terms(bench_secure.AHEAD, 182, 1).ahead == 1
    assert bench_secure.terms("plain", 182, 1).noise == "none"
