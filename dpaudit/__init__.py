"""Measures how private a randomised mechanism really is.

dpaudit plays distinguishing games with any randomised mechanism written in JAX, and reports the privacy loss that an
adversary achieved, with confidence bounds, beside the loss that was promised.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach
from dpaudit._version import __version__ as __version__

if TYPE_CHECKING:
    from dpaudit import auditing as auditing
    from dpaudit import audits as audits
    from dpaudit import data as data
    from dpaudit import federated as federated
    from dpaudit import kernels as kernels
    from dpaudit import mechanisms as mechanisms
    from dpaudit import personalization as personalization
    from dpaudit import report as report
    from dpaudit import secure as secure
    from dpaudit import training as training
    from dpaudit._engine.game import play as play
    from dpaudit._engine.hosts import join_hosts as join_hosts
    from dpaudit._validate import InputError as InputError
    from dpaudit.auditing import domain as domain
    from dpaudit.auditing import estimators as estimators
    from dpaudit.auditing.attacks import distinguish as distinguish
    from dpaudit.auditing.conclude import from_counts as from_counts
    from dpaudit.auditing.domain import Case as Case
    from dpaudit.auditing.domain import Domain as Domain
    from dpaudit.auditing.examine import Examination as Examination
    from dpaudit.auditing.examine import examine as examine
    from dpaudit.auditing.given import from_samples as from_samples
    from dpaudit.auditing.given import from_scores as from_scores
    from dpaudit.auditing.given import one_run as one_run
    from dpaudit.auditing.host import on_host as on_host
    from dpaudit.auditing.lint.inspect import Finding as Finding
    from dpaudit.auditing.lint.inspect import Inspection as Inspection
    from dpaudit.auditing.lint.inspect import inspect as inspect
    from dpaudit.auditing.result import AuditResult as AuditResult
    from dpaudit.auditing.search import SearchResult as SearchResult
    from dpaudit.auditing.search import search as search
    from dpaudit.audits import oracle as oracle
    from dpaudit.audits.audit import audit as audit
    from dpaudit.audits.recording.replay import record as record
    from dpaudit.mechanisms.claim import Claim as Claim
    from dpaudit.mechanisms.claim import Mechanism as Mechanism

__getattr__, __dir__, __all__ = attach(__name__)
