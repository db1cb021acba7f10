"""Installs the package as users do: from a wheel, from a source distribution, and as an editable clone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from dpaudit import __version__

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(
    ".*cache*", ".git", ".hypothesis", ".venv*", "__pycache__", "*.egg-info", "build", "dist", "site"
)
WHERE = """import dpaudit, dpaudit.kernels, json
print(json.dumps([dpaudit.__version__, dpaudit.__file__, dpaudit.kernels.__file__]))"""
BUILD = "import setuptools.build_meta as backend, sys; getattr(backend, sys.argv[1])(sys.argv[2])"


def run(*command, cwd: Path) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def clone(folder: Path) -> Path:
    shutil.copytree(ROOT, folder, symlinks=True, ignore=NOT_SOURCE)
    return folder


def environment(folder: Path) -> Path:
    """Makes an environment that sees the dependencies of this one, but not its dpaudit, and returns its ``bin``."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    libraries = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(libraries, "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def install(bin_: Path, *what, cwd: Path) -> None:
    flags = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", bin_ / "python", "install", *flags, *what, cwd=cwd)


def found(bin_: Path, cwd: Path) -> tuple[str, Path, Path]:
    """The version, the package and its kernels that a program started in ``cwd`` imports."""
    version, package, kernels = json.loads(run(bin_ / "python", "-c", WHERE, cwd=cwd))
    return version, Path(package).parent, Path(kernels).parent


def sources() -> set[str]:
    """What an installed package holds, as paths of a wheel."""
    kept = {".py", ".pyi", ".proto", ".typed"}
    files = [file for root in ("dpaudit", "kernels") for file in (ROOT / root).rglob("*") if file.suffix in kept]
    own = {file.relative_to(ROOT).as_posix() for file in [*files, ROOT / "dpaudit/py.typed"]}
    return {f"dpaudit/{name}" if name.startswith("kernels/") else name for name in own}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The source distribution of a clone, and the wheel that is built from its contents alone."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=clone(folder / "clone"))
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return unpacked, wheel


def test_the_source_distribution_holds_all_that_builds_documents_and_tests_the_package(built):
    unpacked, _ = built
    skipped = {".git", "PKG-INFO", "setup.cfg"}
    tracked = {
        file.relative_to(ROOT).as_posix()
        for folder in ("colab", "constraints", "docs", "dpaudit", "experiments", "kernels", "tests")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    tracked |= {file.name for file in ROOT.iterdir() if file.is_file() and file.name not in skipped} | {".ci/run"}
    assert {name for name in tracked if not (unpacked / name).is_file()} == set()
    assert (unpacked / "dpaudit/secure/service/spgc.proto").read_bytes() == (
        ROOT / "dpaudit/secure/service/spgc.proto"
    ).read_bytes()


def test_a_wheel_holds_the_package_alone_and_runs_anywhere(built, tmp_path):
    _, wheel = built
    with zipfile.ZipFile(wheel) as opened:
        assert {name for name in opened.namelist() if ".dist-info/" not in name} == sources()
    bin_ = environment(tmp_path / "environment")
    install(bin_, wheel, cwd=tmp_path)
    version, package, kernels = found(bin_, tmp_path)
    assert (version, kernels) == (__version__, package / "kernels")
    assert (tmp_path / "environment") in package.parents
    for command in (["dpaudit"], ["python", "-m", "dpaudit"]):
        assert run(bin_ / command[0], *command[1:], "--version", cwd=tmp_path) == f"dpaudit {__version__}\n"


def test_an_editable_clone_and_another_clone_are_not_mixed(tmp_path):
    installed, other = clone(tmp_path / "installed"), clone(tmp_path / "other")
    bin_ = environment(tmp_path / "environment")
    assert found(bin_, other)[1:] == (other / "dpaudit", other / "dpaudit" / "kernels")  # nothing is installed
    install(bin_, "--editable", installed, cwd=tmp_path)
    for start, clone_ in ((tmp_path, installed), (installed, installed), (other, other)):
        assert found(bin_, start)[1:] == (clone_ / "dpaudit", clone_ / "dpaudit" / "kernels")
