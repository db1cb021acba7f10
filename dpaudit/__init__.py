"""dpaudit: how private is a mechanism really?

Play distinguishing games with any randomised mechanism written in JAX, and report the privacy loss that an adversary
achieved, with confidence bounds, beside the loss that was promised.
"""

from dpaudit import mechanisms
from dpaudit.auditing import distinguish, domain, oracle
from dpaudit.auditing.audit import audit
from dpaudit.auditing.case import Case
from dpaudit.auditing.domain import Domain
from dpaudit.auditing.examine import Examination, examine
from dpaudit.auditing.game import play
from dpaudit.auditing.host import on_host
from dpaudit.auditing.inspect import Finding, Inspection, inspect
from dpaudit.auditing.result import AuditResult
from dpaudit.auditing.search import SearchResult, search
from dpaudit.check import InputError
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
