"""Audits mechanisms: plays games on two inputs, and bounds the privacy loss that an attack attained.

:mod:`audit` measures one pair of inputs, :mod:`search` looks for the worst pair, and :mod:`examine` runs all checks
and attacks within a time budget. :mod:`domain` defines which inputs are neighbours, :mod:`estimators` how counts
become bounds. :func:`from_counts`, :func:`from_scores`, :func:`from_samples` and :func:`one_run` audit data that were
obtained elsewhere. The attacks are in :mod:`attacks`, the statistics in :mod:`bounds`, and checks of the program
itself in :mod:`lint`.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.auditing import attacks as attacks
    from dpaudit.auditing import audit as audit
    from dpaudit.auditing import bounds as bounds
    from dpaudit.auditing import domain as domain
    from dpaudit.auditing import estimators as estimators
    from dpaudit.auditing import examine as examine
    from dpaudit.auditing import lint as lint
    from dpaudit.auditing import plan_mechanism as plan_mechanism
    from dpaudit.auditing import search as search
    from dpaudit.auditing.conclude import from_counts as from_counts
    from dpaudit.auditing.domain import Case as Case
    from dpaudit.auditing.domain import Domain as Domain
    from dpaudit.auditing.estimators import Estimator as Estimator
    from dpaudit.auditing.examine import Examination as Examination
    from dpaudit.auditing.given import from_samples as from_samples
    from dpaudit.auditing.given import from_scores as from_scores
    from dpaudit.auditing.given import one_run as one_run
    from dpaudit.auditing.host import on_host as on_host
    from dpaudit.auditing.result import AuditResult as AuditResult
    from dpaudit.auditing.search import SearchResult as SearchResult

__getattr__, __dir__, __all__ = attach(__name__)
