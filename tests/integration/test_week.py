"""Tests weeks of a service in minutes (:mod:`tests.integration.week`), in a short version and in the whole."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.week import EVENTS


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for clocks that jump")
@pytest.mark.parametrize(
    ("steps", "events"), [(60, len(EVENTS)), pytest.param(2_000, 8 * len(EVENTS), marks=pytest.mark.slow)]
)
def test_weeks_of_a_service(tmp_path: Path, steps: int, events: int) -> None:
    words = ["--steps", str(steps), "--events", str(events), "--folder", str(tmp_path / "week")]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.week", *words], capture_output=True, text=True, check=False
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{steps} steps in " in ended.stdout
    assert ended.stdout.count("openings for") == 1
