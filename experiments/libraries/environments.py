"""Makes an environment for each library, with the versions of its file in ``requirements/``.

python -m experiments.libraries.environments opendp          # makes it if it is not there, prints its interpreter
python -m experiments.libraries.environments opendp --pin    # writes its requirements from what it has now
"""

import argparse
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements"
FOLDER = Path(os.environ.get("LIBRARY_ENVIRONMENTS", ROOT / ".venv-libraries"))
FIRST = ("torch", "numpy")  # what other packages are built or chosen by


def names() -> list[str]:
    """The environments that there are requirements for."""
    return sorted(file.stem for file in REQUIREMENTS.glob("*.txt"))


def interpreter(name: str) -> Path:
    return FOLDER / name / "bin" / "python"


def make(name: str) -> Path:
    """Makes an environment unless it has been made of these very requirements; returns its interpreter.

    Raises:
      RuntimeError: no package index can be reached, or it lacks a version; with pip's last line.
    """
    file, stamp = REQUIREMENTS / f"{name}.txt", FOLDER / name / "made_of.txt"
    wanted = file.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return interpreter(name)
    subprocess.run([sys.executable, "-m", "venv", FOLDER / name], check=True)
    first = [line for line in wanted.splitlines() if line.startswith(tuple(f"{package}==" for package in FIRST))]
    for what in ([first] if first else []) + [["--no-deps", "--requirement", str(file)]]:
        done = subprocess.run(
            [interpreter(name), "-m", "pip", "install", "-q", "--disable-pip-version-check", *what],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise RuntimeError(f"{name}: {said[-1]}")
    stamp.write_text(wanted, encoding="utf-8")
    return interpreter(name)


def check(name: str) -> None:
    """Checks that this interpreter has every version that an environment is made of.

    Raises:
      SystemExit: with the first package that is missing or of another version.
    """
    for line in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        package, _, wanted = line.partition("==")
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            found = "none"
        if wanted not in (found, found.partition("+")[0]):  # 2.13.0+cpu is a build of 2.13.0
            raise SystemExit(f"{name}: expected {line}, got {found}; make libraries ONLY={name} installs it")


def pin(name: str) -> None:
    """Writes down the exact versions that an environment has."""
    found = subprocess.run(
        [interpreter(name), "-m", "pip", "freeze", "--disable-pip-version-check"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (REQUIREMENTS / f"{name}.txt").write_text(found, encoding="utf-8")
    (FOLDER / name / "made_of.txt").write_text(found, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--pin", action="store_true", help="write the versions that are installed into requirements/")
    given = parser.parse_args()
    for name in given.names:
        if given.pin:
            pin(name)
        else:
            print(make(name))


if __name__ == "__main__":
    main()
