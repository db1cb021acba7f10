"""What is installed: every package of the checkout, with kernels/ inside dpaudit."""

import tomllib
from pathlib import Path

import dpaudit.kernels

ROOT = Path(__file__).parents[1]


def test_every_package_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "dpaudit").rglob("__init__.py")}
    assert listed == sorted(found | {"dpaudit.kernels"})


def test_kernels_lie_beside_the_package():
    assert [Path(folder).resolve() for folder in dpaudit.kernels.__path__] == [ROOT / "kernels"]
