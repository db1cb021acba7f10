"""Draws secret bytes from the operating system, and expands a seed into more of them with AES in counter mode.

Every function here that needs secret bytes takes a ``source``: a function from a number of bytes to that many bytes.
The default is :func:`system`. A test that pins the bytes on the wire passes the :meth:`Stream.draw` of a known seed;
no global switch changes the source of anything else.
"""

import secrets
from collections.abc import Callable

import numpy as np

from dpaudit import _validate

with _validate.extra("secure"):
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Source = Callable[[int], bytes]

SEED_BYTES = 16
_ZEROS = memoryview(bytes(1 << 16))  # the plaintext, so that the ciphertext is the key stream


def system(count: int) -> bytes:
    """Draws ``count`` bytes from the operating system's generator, fit for keys."""
    return secrets.token_bytes(count)


def unshown(self: object) -> str:
    """Names the type alone: the ``__repr__`` of what holds secrets, which may be printed with a fault."""
    return f"{type(self).__name__}(...)"


class Stream:
    """Generates the key stream of AES-128 in counter mode: block i is AES_seed(i), i = 0, 1, ...; no byte is reused.

    With a secret uniform seed, m blocks are distinguished from uniform ones with advantage at most m^2 / 2^129 beyond
    that against AES itself: below 2^-60 for the first 2^34 blocks. The seed determines every byte, past ones included.

    Args:
      seed: 16 bytes, used by this stream only.

    Raises:
      InputError: the seed has another length (the message does not repeat its value).

    Source: NIST SP 800-38A, section 6.5; the bound is the switching lemma between permutations and functions.
    """

    def __init__(self, seed: bytes):
        if len(seed) != SEED_BYTES:
            raise _validate.expected("seed", f"{SEED_BYTES} bytes", len(seed))
        self._update = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update_into

    def fill(self, out: np.ndarray) -> None:
        """Overwrites ``out``, uint8 [n], with the next bytes of the stream."""
        if len(out) <= len(_ZEROS):
            self._update(_ZEROS[: len(out)], out.data)
        else:
            for start in range(0, len(out), len(_ZEROS)):
                self.fill(out[start : start + len(_ZEROS)])

    def draw(self, count: int) -> bytes:
        """Returns the next ``count`` bytes of the stream: a ``Source`` that can be replayed."""
        out = np.empty(count, np.uint8)
        self.fill(out)
        return out.tobytes()
