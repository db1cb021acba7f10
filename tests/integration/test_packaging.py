"""What is installed: every package of the checkout, with kernels/ inside dpaudit."""

import subprocess
import sys
import tomllib
from pathlib import Path

import dpaudit.kernels

ROOT = Path(__file__).parents[2]


def test_every_package_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "dpaudit").rglob("__init__.py")}
    assert listed == sorted(found | {"dpaudit.kernels"})


def test_kernels_lie_beside_the_package():
    assert [Path(folder).resolve() for folder in dpaudit.kernels.__path__] == [ROOT / "kernels"]


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
