"""Personalizes models on users' devices and releases what is common to them with differential privacy.

A protocol defines what each party computes in a round. It runs inside a trust boundary, which records and accounts all
releases (:mod:`dpaudit.personalization.boundary`). Shipped protocols are private alternating least squares, with the
recommenders built on it (:mod:`dpaudit.personalization.als`), and user-level DP-SGD and DP-FTRL of any model
(:mod:`dpaudit.personalization.user_level`).

Source: paper 004, on personalization on the device.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.personalization import user_level as user_level
    from dpaudit.personalization.als import factored as factored
    from dpaudit.personalization.als import layout as layout
    from dpaudit.personalization.als import metrics as metrics
    from dpaudit.personalization.als import recommender as recommender
    from dpaudit.personalization.als.least_squares import alternating as alternating
    from dpaudit.personalization.als.least_squares import counted as counted
    from dpaudit.personalization.boundary.aggregator import replay as replay
    from dpaudit.personalization.boundary.aggregator import run as run
    from dpaudit.personalization.boundary.bounds import bounded as bounded
    from dpaudit.personalization.boundary.bounds import clipped as clipped
    from dpaudit.personalization.boundary.budget import Budget as Budget
    from dpaudit.personalization.boundary.budget import noise_for as noise_for
    from dpaudit.personalization.boundary.inference import Held as Held
    from dpaudit.personalization.boundary.inference import OnDevice as OnDevice
    from dpaudit.personalization.boundary.inference import aggregated as aggregated
    from dpaudit.personalization.boundary.inference import infer as infer
    from dpaudit.personalization.boundary.inference import shown as shown
    from dpaudit.personalization.boundary.ledger import Ledger as Ledger
    from dpaudit.personalization.boundary.parties import assemble as assemble
    from dpaudit.personalization.boundary.processes import correlated as correlated
    from dpaudit.personalization.boundary.processes import gaussian as gaussian
    from dpaudit.personalization.boundary.processes import memoryless as memoryless
    from dpaudit.personalization.boundary.protocol import Protocol as Protocol
    from dpaudit.personalization.boundary.protocol import each as each
    from dpaudit.personalization.boundary.protocol import everything as everything
    from dpaudit.personalization.boundary.protocol import private as private
    from dpaudit.personalization.boundary.protocol import rows as rows
    from dpaudit.personalization.boundary.transcript import Transcript as Transcript

__getattr__, __dir__, __all__ = attach(__name__)
