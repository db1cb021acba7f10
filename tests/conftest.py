"""What all tests share: where compiled programs are kept, how examples are drawn, where real data lies."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Set before JAX is imported, in the environment so that tests that start a process of their own inherit them.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # most take less than 0.1 s, and half a run
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # programs do not carry the lines that they come from

TESTS = Path(__file__).parent
INTEGRATION = {TESTS / name for name in ("experiments", "integration")}
LONG = {line for line in (TESTS / "long.txt").read_text().splitlines() if not line.startswith("#")}
MOST_MAPS = 45_000

gc.set_threshold(50_000, 50, 100)  # tracing makes objects by the million, few of them in circles

hypothesis.settings.register_profile("dpaudit", derandomize=True, deadline=None)
hypothesis.settings.load_profile("dpaudit")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the folders of the integration tier where it is not asked for: importing them takes as long as
    importing all others."""
    return True if collection_path in INTEGRATION and "not integration" in config.option.markexpr else None


def listed_as(item: pytest.Item) -> str:
    """Returns a test's line in ``long.txt``, which is one for all of its parameters."""
    return f"{os.path.relpath(item.path, TESTS)}::{item.name.partition('[')[0]}"


@pytest.hookimpl(tryfirst=True)  # before tests are picked by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies in ``integration``, the experiments', and what ``long.txt`` lists; a test that starts a process
    elsewhere is marked by itself."""
    for item in items:
        if listed_as(item) in LONG or not INTEGRATION.isdisjoint(item.path.parents):
            item.add_marker("integration")


def pytest_collection_finish() -> None:
    """Leaves what importing and collecting have made out of every later look for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def room_for_programs() -> Iterator[None]:
    """Lets go of compiled programs before they are too many: each takes memory maps, of which a process has 65,530."""
    yield
    maps = Path("/proc/self/maps")
    if "jax" in sys.modules and maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets that $DPAUDIT_DATA names; a test that needs it is skipped where there is none."""
    named = os.environ.get("DPAUDIT_DATA")
    if not named:
        pytest.skip("needs real data: DPAUDIT_DATA is not set")
    if not Path(named).is_dir():
        pytest.skip(f"needs real data: DPAUDIT_DATA names no folder: {named}")
    return Path(named)
