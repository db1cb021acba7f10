"""Garbles circuits with half gates and free XOR, so that whoever evaluates one learns only its output.

Every wire has a label W for zero and W ^ D for one. The last bit of the secret D (delta) is one: the last bit of a
label tells which of the two it is only to someone who knows that of W (point and permute). An XOR gate is the XOR of
labels and costs nothing. An AND gate of wires with labels A, B for zero, and a, b their last bits, is sent as two
labels::

    TG = H(A) ^ H(A ^ D) ^ b D           C = H(A) ^ a TG ^ H(B) ^ b (TE ^ A)
    TE = H(B) ^ H(B ^ D) ^ A

C is the result's label for zero. The evaluator has one label of each wire; put in place of A and B, with their last
bits for a and b, the same equation gives the label of the result.

The hash H is one block of AES-128, under a new key for every gate and chunk of coordinates. For a label x = L || R
(two words of 64 bits), the AND gate number g in chunk c of the coordinates, a place i in the chunk and a half h of the
gate (0 or 1), with a public seed S that each garbling draws anew at random::

    H(x) = E_K(y) ^ y        y = sigma(x) ^ t        sigma(L || R) = (L ^ R) || L
    K    = E_S(c || g)       t = 0 || (2 i + h)      (words and numbers are little-endian, 64 bits)

E is AES-128. K differs for each (c, g), since E_S is a permutation. Under one K the tweaks differ for each (i, h), so
two inputs y of random labels agree with probability 2^-128, and those of one label never do. sigma is a linear
orthomorphism: sigma and sigma ^ identity are invertible, so H(x ^ D) ^ b D looks random to someone who does not know
D, although D is in the input and in the output. By linearity H(A) ^ H(A ^ D) = E(y) ^ E(y ^ sigma(D)) ^ sigma(D).

Guaranteed: an evaluator, who has one label of each input, learns from everything it is sent the output bits and
nothing else about the inputs (privacy), and without the decoding bits nothing at all (obliviousness). Nothing is
guaranteed against a garbler that garbles another circuit, or an evaluator that claims another output: both are
semi-honest here. With E an ideal cipher and labels that are uniform or come from H and XOR themselves ("naturally
derived"), Q evaluations of E distinguish a garbling from random tables with an advantage of the order of (q Q + m q^2)
/ 2^128, for m keys that hide q blocks each. A chunk of 4,096 coordinates hides q = 8,192: 13 bits of 128 are lost,
however many gates and coordinates there are; with one fixed key the loss would be the logarithm of their total number.

The last bit of a label is the lowest of its first byte. Coordinates go through the circuit in chunks of :data:`CHUNK`,
at which both parties must cut: a chunk fits in a CPU's cache and shares a key. Inside a chunk a wire is an array
uint64 [2, n]: the first words of n labels, then the second words.

Sources: Zahur, Rosulek and Evans 2015, "Two halves make a whole", Figure 2 and section 4.1 (the notion, the tweak, the
order of the bound for one permutation; that it adds up over keys is our reading); free XOR: Kolesnikov and Schneider
2008, "Improved garbled circuit: free XOR gates and applications"; sigma: Guo, Katz, Wang and Yu 2020, "Efficient and
secure multiparty computation from fixed-key block ciphers"; new keys: Guo, Katz, Wang, Weng and Yu 2020, "Better
concrete security for half-gates garbling (in the multi-instance setting)".
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.secure.circuits.circuit import Circuit, run
from dpaudit.secure.crypto.randomness import Source

with _validate.extra("secure"):
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

# The hash.

Encrypt = Callable[[memoryview, memoryview], object]  # whole blocks -> a buffer that is SLACK bytes longer, or more
Keys = Callable[[int, int], Encrypt]  # (chunk, gate) -> encryption under its key

WORD = np.dtype("<u8")
BLOCK = 16
SLACK = BLOCK - 1


def encryption(key: bytes) -> Encrypt:
    """Returns AES-128 under a key, block by block."""
    return Cipher(algorithms.AES128(key), modes.ECB()).encryptor().update_into


class GateKeys:
    """Derives the keys K of one garbling, as :data:`Keys`: each once, chunk by chunk, in rising order.

    Args:
      seed: S, 16 bytes, new for every garbling; both parties know it.

    Raises:
      InputError: the seed has another length; or a chunk and gate do not come after the last ones, so that the key
        may have been used already.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != BLOCK:
            raise _validate.expected("seed", f"{BLOCK} bytes", len(seed))
        self._derive = encryption(seed)
        self._last = (-1, -1)

    def __call__(self, chunk: int, gate: int) -> Encrypt:
        if (chunk, gate) <= self._last:
            raise _validate.expected("(chunk, gate)", f"a pair after {self._last}", (chunk, gate))
        self._last = chunk, gate
        key = bytearray(BLOCK + SLACK)
        self._derive(memoryview(chunk.to_bytes(8, "little") + gate.to_bytes(8, "little")), memoryview(key))
        return encryption(bytes(key[:BLOCK]))


def tweaks_of(count: int) -> np.ndarray:
    """Returns t of both halves of a gate at ``count`` places: uint64 [2, count], 2 i + h."""
    return np.arange(2 * count, dtype=WORD).reshape(count, 2).T.copy()


def blocks(label: np.ndarray, tweak: np.ndarray, out: np.ndarray) -> None:
    """Computes the input of AES, y = sigma(x) ^ t.

    Args:
      label: x by words, uint64 [2, n]: first all L, then all R.
      tweak: t, uint64 [n].
      out: where the blocks for AES are written, uint64 [n, 2].
    """
    np.bitwise_xor(label[0], label[1], out=out[:, 0])
    np.bitwise_xor(label[0], tweak, out=out[:, 1])


def hashes(words: np.ndarray, key: Callable[[int], Encrypt], delta: np.ndarray | None = None) -> np.ndarray:
    """Hashes labels to the first word of H, :data:`CHUNK` at a time: uint64 [2, n] -> [1, n], or [2, n] with a delta.

    Args:
      words: the labels' first words, then their second words.
      key: ``key(chunk)``, in rising order; the tweak of a label is its place in its chunk.
      delta: uint64 [2]; with it, the second row has the hashes of the labels ^ delta, by the same keys and tweaks.
    """
    n = words.shape[1]
    found, most = np.empty((1 if delta is None else 2, n), WORD), min(n, CHUNK)
    tweaks, aes = np.arange(most, dtype=WORD), _Aes(len(found), most)
    if delta is not None:
        sigma_delta = np.empty((most, 2), WORD)
        sigma_delta[:] = delta[0] ^ delta[1], delta[0]
    for chunk, start in enumerate(range(0, n, CHUNK)):
        label = words[:, start : start + CHUNK]
        if label.shape[1] < most:
            aes = _Aes(len(found), label.shape[1])
        blocks(label, tweaks[: label.shape[1]], out=aes.plain[0])
        if delta is not None:
            np.bitwise_xor(aes.plain[0], sigma_delta[: label.shape[1]], out=aes.plain[1])
        aes.encrypt(key(chunk))
        np.bitwise_xor(aes.plain[..., 0], aes.cipher[..., 0], out=found[:, start : start + CHUNK])
    return found


# Garbling and evaluation.

CHUNK = 4096  # coordinates

_LAST = WORD.type(1)


class Garbled(NamedTuple):
    """A garbled circuit for one chunk of coordinates.

    Attributes:
      tables: uint64 [ANDs, 2, 2, n]: TG and TE of each gate, first words then second words; 32 n bytes a gate.
      decoding: uint8 [outputs, n]: the last bits of the outputs' labels for zero, with which the outputs can be read.
    """

    tables: np.ndarray
    decoding: np.ndarray


def chunks(labels: np.ndarray) -> Iterator[np.ndarray]:
    """Cuts labels [wires, d, 16] into [wires, n, 16] for each chunk of coordinates, without a copy."""
    for start in range(0, labels.shape[1], CHUNK):
        yield labels[:, start : start + CHUNK]


def fresh_delta(source: Source) -> np.ndarray:
    """Draws delta, by which the two labels of every wire differ: uint8 [16], uniform but for the lowest bit of byte 0,
    which is one, so that it tells the two labels of a wire apart."""
    delta = np.frombuffer(source(BLOCK), np.uint8).copy()
    delta[0] |= 1
    return delta


def choose(zeros: np.ndarray, bits: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Chooses the labels of bits: uint8 [..., 16], W or W ^ D, for bits of 0 and 1 of shape [...]."""
    return zeros ^ (np.negative(bits, dtype=np.uint8)[..., None] & delta)


def garble(circuit: Circuit, zeros: Iterable[np.ndarray], delta: np.ndarray, keys: Keys) -> Iterator[Garbled]:
    """Garbles a circuit, chunk by chunk.

    Args:
      circuit: the circuit.
      zeros: the inputs' labels for zero, chunk by chunk (:func:`chunks`): uint8 [inputs, n, 16], secret and uniform.
        To XOR a bit of the garbler's into an input, XOR bit times delta into its label; this needs no wire.
      delta: D, uint8 [16], secret and uniform except for the last bit, which is one.
      keys: used for this garbling only.

    Yields:
      What the evaluator needs, for each chunk.

    Raises:
      InputError: delta's last bit is zero, or delta or the labels have another shape.
    """
    if delta.shape != (BLOCK,) or delta.dtype != np.uint8 or not delta[0] & 1:
        raise _validate.expected(
            "delta", f"uint8 [{BLOCK}] with the last bit one", f"{delta.dtype} {list(delta.shape)}"
        )
    words = np.ascontiguousarray(delta).view(WORD).reshape(2, 1)
    for chunk, labels in enumerate(zeros):
        inputs, n = _wires(circuit, labels)
        tables = np.empty((circuit.ands, 2, 2, n), WORD)
        gate = _garbled_and(tables, words, partial(keys, chunk))
        outputs = run(circuit, (np.zeros_like(words), words), inputs, np.bitwise_xor, gate)
        yield Garbled(tables, _last_bits(outputs, n))


def evaluate(
    circuit: Circuit, labels: Iterable[np.ndarray], tables: Iterable[np.ndarray], keys: Keys
) -> Iterator[np.ndarray]:
    """Evaluates a garbled circuit, chunk by chunk.

    Args:
      circuit: the circuit.
      labels: the labels of the inputs' bits, chunk by chunk: uint8 [inputs, n, 16].
      tables: :attr:`Garbled.tables` of each chunk.
      keys: made from the same seed as the garbler's.

    Yields:
      uint8 [outputs, n] of each chunk: the last bits of the outputs' labels. XOR them with :attr:`Garbled.decoding`
      to get the output bits.

    Raises:
      InputError: the shapes of labels, tables and circuit do not match.
    """
    constant = np.zeros((2, 1), WORD)  # for both constants, as the garbler's label for zero of ONE is delta
    for chunk, (active, table) in enumerate(zip(labels, tables, strict=True)):
        inputs, n = _wires(circuit, active)
        if table.shape != (circuit.ands, 2, 2, n):
            raise _validate.expected("tables", f"shape [{circuit.ands}, 2, 2, {n}]", f"shape {list(table.shape)}")
        gate = _evaluated_and(table, partial(keys, chunk))
        outputs = run(circuit, (constant, constant), inputs, np.bitwise_xor, gate)
        yield _last_bits(outputs, n)


def _garbled_and(tables: np.ndarray, delta: np.ndarray, key: Callable[[int], Encrypt]) -> Callable[..., np.ndarray]:
    """Returns the garbler's AND gate of one chunk, from labels for zero to the label for zero; it fills ``tables``."""
    n = tables.shape[-1]
    tweaks = tweaks_of(n)
    sigma_delta = np.empty((n, 2), WORD)
    blocks(np.repeat(delta, n, axis=1), np.zeros(n, WORD), out=sigma_delta)
    aes = _Aes(2, 2, n)  # labels for zero, then for one, each for both halves of the gate
    (zero, one), (hashed, differs) = aes.plain, aes.cipher
    (zero_a, zero_b), both, (differs_a, differs_b) = zero, hashed[0], differs.swapaxes(1, 2)
    masks = a_last, b_last = np.empty((2, n), WORD)
    scratch = np.empty((2, n), WORD)
    gates = enumerate(tables)

    def conjunction(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        number, (generator, evaluator) = next(gates)
        blocks(a, tweaks[0], out=zero_a)
        blocks(b, tweaks[1], out=zero_b)
        np.bitwise_xor(zero, sigma_delta, out=one)
        aes.encrypt(key(number))
        np.bitwise_xor(differs, hashed, out=differs)
        np.bitwise_xor(differs, sigma_delta, out=differs)  # H of zero ^ H of one
        for part in (hashed[1], zero_a, zero_b):
            np.bitwise_xor(both, part, out=both)  # H(a) ^ H(b)
        _masks(a, b, out=masks)
        np.bitwise_and(b_last, delta, out=generator)
        np.bitwise_xor(generator, differs_a, out=generator)
        np.bitwise_xor(differs_b, a, out=evaluator)
        wire = np.bitwise_and(a_last, generator)
        np.bitwise_xor(wire, both.T, out=wire)
        np.bitwise_and(b_last, differs_b, out=scratch)  # b (TE ^ A)
        return np.bitwise_xor(wire, scratch, out=wire)

    return conjunction


def _evaluated_and(tables: np.ndarray, key: Callable[[int], Encrypt]) -> Callable[..., np.ndarray]:
    """Returns the evaluator's AND gate of one chunk, from the labels held to the label of the result."""
    n = tables.shape[-1]
    tweaks = tweaks_of(n)
    aes = _Aes(2, n)  # both halves of the gate
    (plain_a, plain_b), (both, hashed_b) = aes.plain, aes.cipher
    masks = a_last, b_last = np.empty((2, n), WORD)
    scratch = np.empty((2, n), WORD)
    gates = enumerate(tables)

    def conjunction(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        number, (generator, evaluator) = next(gates)
        blocks(a, tweaks[0], out=plain_a)
        blocks(b, tweaks[1], out=plain_b)
        aes.encrypt(key(number))
        for part in (hashed_b, plain_a, plain_b):
            np.bitwise_xor(both, part, out=both)  # H(a) ^ H(b)
        _masks(a, b, out=masks)
        wire = np.bitwise_and(a_last, generator)
        np.bitwise_xor(wire, both.T, out=wire)
        np.bitwise_xor(evaluator, a, out=scratch)
        np.bitwise_and(b_last, scratch, out=scratch)
        return np.bitwise_xor(wire, scratch, out=wire)

    return conjunction


class _Aes:
    """Holds blocks [..., n, 2] and their encryption, in the same memory for every gate."""

    def __init__(self, *shape: int) -> None:
        self.plain = np.empty((*shape, 2), WORD)
        memory = np.empty(self.plain.nbytes + SLACK, np.uint8)
        self.cipher = memory[: self.plain.nbytes].view(WORD).reshape(self.plain.shape)
        self._buffers = self.plain.reshape(-1).view(np.uint8).data, memory.data

    def encrypt(self, encrypt: Encrypt) -> None:
        """Encrypts ``plain`` into ``cipher``."""
        encrypt(*self._buffers)


def _masks(a: np.ndarray, b: np.ndarray, *, out: np.ndarray) -> None:
    """Fills uint64 [2, n] with ones where the last bit of each wire's label is one, without a branch on the bit."""
    np.bitwise_and(a[0], _LAST, out=out[0])
    np.bitwise_and(b[0], _LAST, out=out[1])
    np.negative(out, out=out)


def _wires(circuit: Circuit, labels: np.ndarray) -> tuple[list[np.ndarray], int]:
    """Converts labels [inputs, n, 16] to wires uint64 [2, n]; returns them and n."""
    n = labels.shape[1] if labels.ndim == 3 else 0
    if labels.dtype != np.uint8 or labels.shape != (circuit.inputs, n, BLOCK) or not 1 <= n <= CHUNK:
        wanted = f"uint8 [{circuit.inputs}, n, {BLOCK}] with n in 1 to {CHUNK}"
        raise _validate.expected("labels", wanted, f"{labels.dtype} {list(labels.shape)}")
    return [np.ascontiguousarray(label).view(WORD).T for label in labels], n


def _last_bits(wires: list[np.ndarray], n: int) -> np.ndarray:
    """Extracts the last bits of labels, uint8 [outputs, n]."""
    return np.array([np.broadcast_to(wire[0] & _LAST, n) for wire in wires], np.uint8)
