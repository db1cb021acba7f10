"""A mechanism with the pair and the promise it is audited on, in one value or in one Python file."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from dpaudit import check
from dpaudit.auditing.domain import Domain, Pair
from dpaudit.auditing.probe import one_line
from dpaudit.mechanisms.claim import Claim, Mechanism

MODULE = "dpaudit_case"  # under which a user's file runs: none of the names that it may import


class Case(NamedTuple):
    """What ``dpaudit audit FILE:NAME`` audits.

    Attributes:
      mechanism: a :class:`Mechanism` or a jittable ``fn(key, x) -> release``.
      x0, x1: the two inputs, neighbours in the sense of the claim.
      claim: the promise; None for the mechanism's own, if it has one.
    """

    mechanism: Mechanism | Callable[[Any, Any], Any]
    x0: Any
    x1: Any
    claim: Claim | None = None


def load(target: str) -> Case:
    """Runs a user's file and finds the case in it.

    Args:
      target: ``FILE:NAME``. NAME is a :class:`Case`, or a mechanism whose pair is the file's ``x0`` and ``x1`` and
        whose promise is its ``claim``, where there is one.

    Raises:
      InputError: no such file or name, a file that raises when it is run, a name for something else.
    """
    found, module, missing = _found(target)
    if isinstance(found, Case):
        return found
    if missing:
        raise check.InputError(missing)
    return Case(found, module.x0, module.x1, getattr(module, "claim", None))


def load_with_neighbours(target: str) -> tuple[Case, Domain | Pair]:
    """Runs a user's file and finds the case in it, and which pairs to examine: its ``domain``, else the case's own.

    Args:
      target: as for :func:`load`; x0 and x1 may be missing where the file has a ``domain``, a :class:`Domain`.

    Raises:
      InputError: as for :func:`load`.
    """
    found, module, missing = _found(target)
    domain = getattr(module, "domain", None)  # `from dpaudit import domain` puts a module there
    if isinstance(found, Case):
        return found, (found.x0, found.x1)
    if isinstance(domain, Domain):
        return Case(found, None, None, getattr(module, "claim", None)), domain
    if missing:
        raise check.InputError(missing)
    return Case(found, module.x0, module.x1, getattr(module, "claim", None)), (module.x0, module.x1)


def _found(target: str) -> tuple[Any, ModuleType, str]:
    """What the target names, the module that it is in, and what to say of a pair that is missing.

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
        return found, module, ""
    if found is None:
        raise check.InputError(f"{path.name}: expected a case or mechanism named {name}, got no such name")
    if not isinstance(found, Mechanism) and not callable(found):
        raise check.expected(f"{path.name}: {name}", "a Case, a Mechanism or a function of (key, x)", found)
    missing = [pair for pair in ("x0", "x1") if not hasattr(module, pair)]
    sentence = f"{path.name}: expected x0 and x1 beside {name}, got no {' and no '.join(missing)}"
    return found, module, sentence if missing else ""


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
