"""Checks what importing the package does, and where its kernels and its version come from."""

import subprocess
import sys
from pathlib import Path

import pytest

import dpaudit.kernels

ROOT = Path(__file__).parents[2]


def test_kernels_are_those_beside_the_package():
    assert Path(dpaudit.kernels.__file__) == ROOT / "dpaudit" / "kernels" / "__init__.py"
    beside = {file.name: file.read_bytes() for file in (ROOT / "kernels").glob("*.py")}
    assert {file.name: file.read_bytes() for file in (ROOT / "dpaudit" / "kernels").glob("*.py")} == beside


@pytest.mark.parametrize("program", [["-m", "dpaudit"], ["-c", "from dpaudit.cli.main import main; main()"]])
def test_the_version_is_told(program):
    said = subprocess.run(
        [sys.executable, *program, "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout == f"dpaudit {dpaudit.__version__}\n"


def test_the_import_is_light():
    heavy = ["dp_accounting", "flax", "grpc", "jax_privacy", "matplotlib", "optax", "orbax", "rich", "scipy.stats"]
    heavy += ["sklearn", "tensorflow", "tensorflow_datasets"]
    program = f"import dpaudit, sys; print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_import_starts_no_backend():
    """Processes of several hosts join after it."""
    program = "import dpaudit, jax; from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
