"""The benchmark of the two servers counts what it says it counts."""

import pytest

from dpaudit.secure.protocol import in_process
from experiments.bench import secure as bench_secure
from experiments.common import Rows


@pytest.mark.parametrize("depth", bench_secure.DEPTHS)
def test_the_bytes_of_a_step_are_those_of_its_messages(tmp_path, depth):
    mine = bench_secure.terms(640, depth)
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
