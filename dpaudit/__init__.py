"""dpaudit: how private is a mechanism really?

Play distinguishing games with any randomised mechanism written in JAX, and report the privacy loss that an adversary
achieved, with confidence bounds, beside the loss that was promised.
"""

from dpaudit import mechanisms
from dpaudit._engine.game import play
from dpaudit._validate import InputError
from dpaudit._version import __version__
from dpaudit.auditing import domain
from dpaudit.auditing.attacks import distinguish
from dpaudit.auditing.audit import audit
from dpaudit.auditing.domain import Case, Domain
from dpaudit.auditing.examine import Examination, examine
from dpaudit.auditing.host import on_host
from dpaudit.auditing.lint.inspect import Finding, Inspection, inspect
from dpaudit.auditing.result import AuditResult
from dpaudit.auditing.search import SearchResult, search
from dpaudit.audits import oracle
from dpaudit.mechanisms.claim import Claim, Mechanism

__all__ = [
    "AuditResult",
    "Case",
    "Claim",
    "Domain",
    "Examination",
    "Finding",
    "InputError",
    "Inspection",
    "Mechanism",
    "SearchResult",
    "__version__",
    "audit",
    "distinguish",
    "domain",
    "examine",
    "inspect",
    "mechanisms",
    "on_host",
    "oracle",
    "play",
    "search",
]
