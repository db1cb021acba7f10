"""Records any Python function's noise and replays it on a neighbouring input: a gray-box audit of host functions."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.audits.recording import adapters as adapters
    from dpaudit.audits.recording.adapters import Adapter as Adapter
    from dpaudit.audits.recording.pair import Noise as Noise
    from dpaudit.audits.recording.replay import record as record
    from dpaudit.audits.recording.result import Recording as Recording

__getattr__, __dir__, __all__ = attach(__name__)
