"""The hash that hides labels: one block of AES-128, under a new key for every gate and chunk of coordinates.

For a label x = L || R (two words of 64 bits), the AND gate number g in chunk c of the coordinates, a place i in the
chunk and a half h of the gate (0 or 1), with a public seed S that one garbling draws at random and no other uses::

    H(x) = E_K(y) ^ y        y = sigma(x) ^ t        sigma(L || R) = (L ^ R) || L
    K    = E_S(c || g)       t = 0 || (2 i + h)      (words and numbers are little-endian, 64 bits)

E is AES-128. K differs for each (c, g), since E_S is a permutation. Under one K the tweaks differ for each (i, h), so
two inputs y of random labels agree with probability 2^-128, and those of one label twice never do. sigma is a linear
orthomorphism: sigma and sigma ^ identity are invertible, which is what makes H(x ^ D) ^ b D look random to one who
does not know D, although D is in the input and in the output.

Promised, with E an ideal cipher and labels that are uniform or come from H and XOR themselves ("naturally derived"): Q
evaluations of E tell a garbling from random tables with an advantage of the order of (q Q + m q^2) / 2^128, for m keys
that hide q blocks each. A chunk of 4,096 coordinates hides q = 8,192: 13 bits of 128 are lost, however many gates and
coordinates there are, where one fixed key would lose the logarithm of all of them.

Sources: Zahur, Rosulek and Evans 2015, "Two halves make a whole", section 4.1 (the notion, the tweak, the order of the
bound for one permutation; that it adds up over keys is our reading); Guo, Katz, Wang and Yu 2020, "Efficient and
secure multiparty computation from fixed-key block ciphers" (sigma); Guo, Katz, Wang, Weng and Yu 2020, "Better
concrete security for half-gates garbling (in the multi-instance setting)" (new keys).
"""

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpaudit import check

Encrypt = Callable[[memoryview, memoryview], object]  # whole blocks -> a buffer that is SLACK bytes longer, or more
Keys = Callable[[int, int], Encrypt]  # (chunk, gate) -> encryption under its key

WORD = np.dtype("<u8")
BLOCK = 16
SLACK = BLOCK - 1


def encryption(key: bytes) -> Encrypt:
    """AES-128 under a key, block by block."""
    return Cipher(algorithms.AES128(key), modes.ECB()).encryptor().update_into


class GateKeys:
    """The keys K of one garbling, as :data:`Keys`: each is given out once, chunk by chunk, in rising order.

    Args:
      seed: S, 16 bytes, fresh for every garbling; both parties know it.

    Raises:
      InputError: a seed of another length; a chunk and gate that do not come after the last, whose key may have
        been used already.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != BLOCK:
            raise check.expected("seed", f"{BLOCK} bytes", len(seed))
        self._derive = encryption(seed)
        self._last = (-1, -1)

    def __call__(self, chunk: int, gate: int) -> Encrypt:
        if (chunk, gate) <= self._last:
            raise check.expected("(chunk, gate)", f"a pair after {self._last}", (chunk, gate))
        self._last = chunk, gate
        key = bytearray(BLOCK + SLACK)
        self._derive(memoryview(chunk.to_bytes(8, "little") + gate.to_bytes(8, "little")), memoryview(key))
        return encryption(bytes(key[:BLOCK]))


def tweaks(count: int) -> np.ndarray:
    """t of both halves of a gate at ``count`` places: uint64 [2, count], 2 i + h."""
    return np.arange(2 * count, dtype=WORD).reshape(count, 2).T.copy()


def blocks(label: np.ndarray, tweak: np.ndarray, out: np.ndarray) -> None:
    """y = sigma(x) ^ t.

    Args:
      label: x by words, uint64 [2, n]: first all L, then all R.
      tweak: t, uint64 [n].
      out: takes the blocks for AES, uint64 [n, 2].
    """
    np.bitwise_xor(label[0], label[1], out=out[:, 0])
    np.bitwise_xor(label[0], tweak, out=out[:, 1])
