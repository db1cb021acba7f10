"""Collects the mutants of all rooms."""

from tests.mutants.mutant import Mutant
from tests.mutants.rooms import auditing, data, federated, mechanisms, personalization, report, secure, top, training

MUTANTS: list[Mutant] = [
    *mechanisms.MUTANTS,
    *auditing.MUTANTS,
    *training.MUTANTS,
    *federated.MUTANTS,
    *personalization.MUTANTS,
    *secure.MUTANTS,
    *data.MUTANTS,
    *report.MUTANTS,
    *top.MUTANTS,
]


def room(mutant: Mutant) -> str:
    """The folder of a mutant's module: of ``dpaudit``, or ``kernels``; "top" for a module of ``dpaudit`` itself."""
    folders = mutant.file.split("/")[:-1]
    return "top" if folders == ["dpaudit"] else folders[folders[0] == "dpaudit"]
