"""Audits whole systems: clients of federated learning, trainings, federated runs and transcripts.

A client audits its own randomizer (:mod:`ldp_client`, :mod:`randomizers`); canaries audit a training, a federated run
and a user-level training; the likelihood ratio audits a whole transcript, of personalization or of any protocol.
:mod:`recording` runs functions of other libraries with their noise recorded.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.audits import craft as craft
    from dpaudit.audits import federated_canary as federated_canary
    from dpaudit.audits import ldp_client as ldp_client
    from dpaudit.audits import oracle as oracle
    from dpaudit.audits import protocol_audit as protocol_audit
    from dpaudit.audits import randomizers as randomizers
    from dpaudit.audits import recording as recording
    from dpaudit.audits import training_canary as training_canary
    from dpaudit.audits import transcript_audit as transcript_audit
    from dpaudit.audits import user_canary as user_canary
    from dpaudit.audits.audited_training import train_audited as train_audited
    from dpaudit.audits.ldp_client import audit_client as audit_client
    from dpaudit.audits.ldp_client import audit_craft as audit_craft
    from dpaudit.audits.user_search import worst_user as worst_user

__getattr__, __dir__, __all__ = attach(__name__)
