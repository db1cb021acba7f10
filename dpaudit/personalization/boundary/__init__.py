"""Keeps users' data inside a trust boundary: protocols, their runs, all releases and their accounting."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.personalization.boundary import aggregator as aggregator
    from dpaudit.personalization.boundary import bounds as bounds
    from dpaudit.personalization.boundary import budget as budget
    from dpaudit.personalization.boundary import channels as channels
    from dpaudit.personalization.boundary import inference as inference
    from dpaudit.personalization.boundary import ledger as ledger
    from dpaudit.personalization.boundary import messages as messages
    from dpaudit.personalization.boundary import parties as parties
    from dpaudit.personalization.boundary import processes as processes
    from dpaudit.personalization.boundary import protocol as protocol
    from dpaudit.personalization.boundary import transcript as transcript

_MODULES = (
    "aggregator",
    "bounds",
    "budget",
    "channels",
    "inference",
    "ledger",
    "messages",
    "parties",
    "processes",
    "protocol",
    "transcript",
)

__getattr__, __dir__, __all__ = attach(__name__)
