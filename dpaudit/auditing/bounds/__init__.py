"""Computes what counts and scores show, with confidence: bounds on epsilon, on rates, and on whole trade-off curves.

:mod:`estimate` holds the exact binomial bounds that audits use by default, :mod:`band` bounds for all thresholds at
once, :mod:`sequential` and :mod:`betting` those for audits that may stop at any time, :mod:`one_run` those for one
training, :mod:`curve` the test of a promise that is a curve, :mod:`gdp` and :mod:`credible` bounds with further
assumptions. :mod:`certified` bounds other quantities than epsilon; :mod:`plan` and :mod:`alternative` tell how many
trials a question takes.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.auditing.bounds import alternative as alternative
    from dpaudit.auditing.bounds import band as band
    from dpaudit.auditing.bounds import betting as betting
    from dpaudit.auditing.bounds import certified as certified
    from dpaudit.auditing.bounds import credible as credible
    from dpaudit.auditing.bounds import curve as curve
    from dpaudit.auditing.bounds import estimate as estimate
    from dpaudit.auditing.bounds import gdp as gdp
    from dpaudit.auditing.bounds import one_run as one_run
    from dpaudit.auditing.bounds import plan as plan
    from dpaudit.auditing.bounds import sequential as sequential

__getattr__, __dir__, __all__ = attach(__name__)
