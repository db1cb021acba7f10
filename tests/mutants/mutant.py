"""Says what a mutant is: a small deliberate fault of the package, and the tests that have to notice it."""

import ast
import hashlib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One fault, matched by text so that it moves with the code around it.

    Attributes:
      file: the module, from the root of the repository.
      old: text that occurs once in the module.
      new: what stands there instead.
      tests: the test files of which at least one has to fail; a name behind :: narrows one down to a test.
      argument: why no test can notice the fault, for one that changes nothing that is promised; else empty.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    argument: str = ""

    @property
    def name(self) -> str:
        """A short name of the fault that depends on nothing but what it changes."""
        digest = hashlib.sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:8]
        return f"{self.file.removeprefix('dpaudit/').removesuffix('.py')}-{digest}"

    def applied(self, root: Path = ROOT) -> str:
        """The module's text with the fault in it.

        Raises:
          ValueError: the old text does not occur exactly once: the mutant is stale.
        """
        path = root / self.file
        text = path.read_text() if path.exists() else ""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: expected its text once, found it {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)

    def fingerprint(self, root: Path = ROOT) -> str:
        """A digest of the fault, its module and its tests, comments and docstrings left out: a result holds for as
        long as it stays the same."""
        files = [self.file, *(test.partition("::")[0] for test in self.tests)]
        whole = [self.old, self.new, *self.tests, *(without_words((root / file).read_text()) for file in files)]
        return hashlib.sha256("\0".join(whole).encode()).hexdigest()[:16]


def without_words(source: str) -> str:
    """A program's text without its comments and docstrings, in one layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[:1] = [] if node.body[1:] else [ast.Pass()]
    return ast.unparse(tree)


def of(file: str, tests: str, *changes: tuple[str, ...]) -> list[Mutant]:
    """Makes mutants of one module, (old text, new text) each, with an argument behind where no test can notice one.

    Args:
      file: the module, without its ``.py``.
      tests: test files without ``tests/`` and ``.py``, or FILE::TEST, separated by spaces.
      changes: the faults.
    """
    parts = [test.partition("::") for test in tests.split()]
    named = tuple(f"tests/{file}.py{between}{test}" for file, between, test in parts)
    return [Mutant(f"{file}.py", old, new, named, *argument) for old, new, *argument in changes]
