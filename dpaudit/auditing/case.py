"""A mechanism with the pair and the promise it is audited on, in one value or in one Python file."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from dpaudit import check
from dpaudit.auditing.domain import Domain
from dpaudit.auditing.probe import one_line
from dpaudit.mechanisms.claim import Claim, Mechanism

MODULE = "dpaudit_case"  # under which a user's file runs: none of the names that it may import


class Case(NamedTuple):
    """What ``dpaudit audit FILE:NAME`` audits and ``dpaudit examine FILE:NAME`` examines.

    Attributes:
      mechanism: a :class:`Mechanism` or a jittable ``fn(key, x) -> release``.
      x0, x1: the two inputs, neighbours in the sense of the claim.
      claim: the promise; None for the mechanism's own, if it has one.
      domain: all pairs of neighbours, for an examination; None to examine the one pair.
    """

    mechanism: Mechanism | Callable[[Any, Any], Any]
    x0: Any
    x1: Any
    claim: Claim | None = None
    domain: Domain | None = None


def load(target: str, *, needs_pair: bool = True) -> Case:
    """Runs a user's file and finds the case in it.

    Args:
      target: ``FILE:NAME``. NAME is a :class:`Case`, or a mechanism whose pair is the file's ``x0`` and ``x1``, whose
        promise is its ``claim`` and whose neighbours are its ``domain``, where there is one.
      needs_pair: whether a domain is not enough.

    Raises:
      InputError: no such file or name, a file that raises when it is run, a name for something else.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise check.expected("target", "FILE:NAME, as in my_mechanism.py:noisy_sum", target)
    path = Path(file)
    if not path.is_file():
        raise check.expected("target", "the path of a Python file before the colon", f"{file}, which is no file")
    module = _run(path)
    found = getattr(module, name, None)
    if isinstance(found, Case):
        return found
    if found is None:
        raise check.InputError(f"{path.name}: expected a case or mechanism named {name}, got no such name")
    if not isinstance(found, Mechanism) and not callable(found):
        raise check.expected(f"{path.name}: {name}", "a Case, a Mechanism or a function of (key, x)", found)
    missing = [pair for pair in ("x0", "x1") if not hasattr(module, pair)]
    domain = getattr(module, "domain", None)
    if not isinstance(domain, Domain):  # `from dpaudit import domain` puts a module there
        domain = None
    if missing and (needs_pair or domain is None):
        raise check.InputError(f"{path.name}: expected x0 and x1 beside {name}, got no {' and no '.join(missing)}")
    x0, x1 = (getattr(module, pair, None) for pair in ("x0", "x1"))
    return Case(found, x0, x1, getattr(module, "claim", None), domain)


def _run(path: Path) -> ModuleType:
    """The file as a module; files beside it can be imported, as when Python runs a script."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise check.expected("target", "a Python file, named *.py, before the colon", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        cause = one_line(f"{type(error).__name__}: {error}")
        raise check.InputError(f"{path.name}: expected a file that runs, got {cause}") from None
    return module
