"""The quick form of every experiment whose library calls take a mesh, on one device and on eight.

Compiled as users compile: with the flags of `make test` a trial's last bits would depend on the devices.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from experiments import common
from tests.integration.together import ended, start

# The largest difference of a row's number, of its size or of 1: none for audits, whose trials are bit-identical; for
# trainings and rounds, whose sums are added in another order, what float32 makes of it on the way to the end.
TOLERANCES = {
    "ldp_client_audit": 1e-4,  # the server's training comes first
    "training_audit": 0.0,
    "federated_audit": 1e-5,
    "clip_size": 1e-3,
    "mc_dropout_risk": 0.03,
    "personalization": 1e-3,
    "personalization_audit": 0.0,
    "spgc_audit": 0.0,
    "fault_zoo": 0.0,
    "dp_sniper": 0.0,
    "coverage": 0.0,
}
WILD = {"clipping skipped", "quantile(0.01)50%"}  # they diverge: within a factor of ten
IMAGE = 100 / 360  # percent that one of the digits' test images is: one or two are nearly ties
ALONE = ("seconds", "hours")  # quantities that are times


def quick(name: str, folder: Path, devices: int) -> subprocess.Popen[str]:
    here = (common.HERE / f"{name}.py").exists()  # what the pages name: python -m experiments.clip_size
    module = f"experiments.{name if here else common.program(name)}"
    code = f"import sys, runpy; sys.argv[0] = '{name}'; runpy.run_module('{module}', run_name='__main__')"
    how = {"NPROC": "16"}  # threads: a network trained on a CPU depends on how many there are
    return start(code, "--quick", "--out", str(folder / str(devices)), folder=folder, devices=devices, variables=how)


def said_of(row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a row is of, but for times."""
    return row["quantity"], {name: value for name, value in row["setting"].items() if name != "fit_seconds"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLERANCES)
def test_eight_devices_find_what_one_finds_and_spend_the_same(tmp_path, name):
    found: list[list[dict[str, Any]]] = []
    for devices in (1, 8):
        ((status, _, said),) = ended(quick(name, tmp_path, devices), seconds=1800)
        assert status == 0, said
        rows = json.loads((tmp_path / str(devices) / "results.json").read_text())
        found.append([row for row in rows if not any(part in row["quantity"] for part in ALONE)])
    one, eight = found
    assert len(one) > 2
    assert [said_of(row) for row in one] == [said_of(row) for row in eight]  # what is spent among it
    for mine, theirs in zip(one, eight, strict=True):
        wild = any(diverging in str(mine["setting"]) for diverging in WILD)
        if not isinstance(mine["ours"], (float, int) if wild else float):
            assert mine["ours"] == theirs["ours"], mine
            continue
        largest = max(1.0, abs(mine["ours"]), abs(theirs["ours"]))
        allowed = (0.9 if wild else TOLERANCES[name]) * largest
        if name == "clip_size" and mine["quantity"] in ("accuracy_percent", "claim_margin"):
            allowed = max(allowed, 2.1 * IMAGE)
        assert abs(mine["ours"] - theirs["ours"]) <= allowed, (mine, theirs)
