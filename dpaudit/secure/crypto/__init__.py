"""Provides cryptographic building blocks of two servers: secret bytes, additive shares and oblivious transfer.

Base transfers come from public-key cryptography, correlated transfers stretch them into as many as a step needs.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.secure.crypto import base_transfers as base_transfers
    from dpaudit.secure.crypto import correlated_transfers as correlated_transfers
    from dpaudit.secure.crypto import randomness as randomness
    from dpaudit.secure.crypto import shares as shares

__getattr__, __dir__, __all__ = attach(__name__)
