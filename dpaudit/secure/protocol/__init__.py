"""Runs the protocol of two servers: the terms of a training, its fixed point, and the opening of a noisy sum."""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.secure.protocol import agreement as agreement
    from dpaudit.secure.protocol import fixed_point as fixed_point
    from dpaudit.secure.protocol import in_process as in_process
    from dpaudit.secure.protocol import prepared as prepared
    from dpaudit.secure.protocol import schemes as schemes
    from dpaudit.secure.protocol import transfer_noise as transfer_noise
    from dpaudit.secure.protocol import two_server_sum as two_server_sum

__getattr__, __dir__, __all__ = attach(__name__)
