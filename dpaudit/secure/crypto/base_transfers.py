"""Runs 128 random oblivious transfers by public-key cryptography; all other transfers extend them.

For each index the sender ends with two seeds, the receiver with the one that its choice bit selects. With A = aG the
sender's point and a number b of each index, the receiver computes bG and bA, sends B = bG for choice 0 and B = bA for
choice 1, and hashes the other. The sender hashes aB for seed 0 and a^-1 B for seed 1: for choice 0 aB = bA, for choice
1 a^-1 B = bG. Points are hashed by their x, with the index, A and B. Only the x of B is sent: P and -P have one x, and
so have their multiples.

Guaranteed against parties that follow the protocol and do not collude (semi-honest): bG and bA are both uniform among
the points other than infinity, as the order of P-256 is a prime, so B has the same distribution for either choice and
the sender learns nothing of it, whatever it computes. The receiver's other seed hashes a^-1 B = a^-1 bG for choice 0
and aB = a^2 bG for choice 1, where it knows b and A = aG alone. Computing a^-1 G or a^2 G from aG is as hard as the
computational Diffie-Hellman problem (Bao, Deng and Zhu 2003), so the seed is as good as random while that is hard on
P-256 and SHA-256 behaves like a random oracle. Every received point is checked to lie on the curve. Nothing is
guaranteed against parties that depart from the protocol.

OpenSSL does everything with points, in constant time; there is no addition of points, which it does not offer and
which other protocols (Chou and Orlandi 2015) need. Python's integers, whose running time is not constant, invert a
once, multiplied by another random number.

Source: Bellare and Micali 1989, Non-interactive oblivious transfer, for two keys of which the receiver can know one;
Bao, Deng and Zhu 2003, Variations of Diffie-Hellman problem, for the inverse and the square.
"""

import hashlib

import numpy as np

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto.randomness import SEED_BYTES, Source, system

with _validate.extra("secure"):
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

# Points of the curve P-256.

Secret = ec.EllipticCurvePrivateKey  # a number a in [1, order), with the point aG
Point = ec.EllipticCurvePublicKey  # a point of the curve; OpenSSL makes none at infinity

POINT_BYTES = 65  # uncompressed: 4, then x and y as 32 bytes each (SEC 1, section 2.3.3)
X_BYTES = 32
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def secret_number(source: Source) -> Secret:
    """Draws a uniform secret number; draws again where 32 bytes are not in [1, order), once in 2^32 times."""
    while not 0 < (number := int.from_bytes(source(32), "big")) < _ORDER:
        pass
    return ec.derive_private_key(number, _CURVE)


def encode_point(point: Point) -> bytes:
    """Returns the 65 bytes of a point."""
    return point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def decode_point(data: bytes) -> Point:
    """Returns the point that 65 bytes encode.

    Raises:
      InputError: the bytes are not the uncompressed encoding of a point of the curve.
    """
    if len(data) == POINT_BYTES:
        try:
            return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, data)
        except ValueError:
            pass
    raise _validate.expected("point", f"{POINT_BYTES} bytes of an uncompressed point of P-256", data.hex())


def decode_x(data: bytes) -> Point:
    """Returns the point of this x whose y is even.

    Raises:
      InputError: the bytes are not the x of a point of the curve.
    """
    if len(data) == X_BYTES:
        try:
            return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, b"\x02" + data)
        except ValueError:
            pass
    raise _validate.expected("point", f"{X_BYTES} bytes, the x of a point of P-256", data.hex())


def multiply(number: Secret, point: Point) -> bytes:
    """Returns x(aP), 32 bytes: the same for P and -P."""
    return number.exchange(ec.ECDH(), point)


def inverse(number: Secret, blind: Secret) -> Secret:
    """Returns 1/a modulo the order of the curve.

    Args:
      number: a.
      blind: a random number used for nothing else: only its product with a is inverted, so that the time of the
        inversion tells nothing of a.
    """
    a, r = (each.private_numbers().private_value for each in (number, blind))
    return ec.derive_private_key(r * pow(a * r % _ORDER, -1, _ORDER) % _ORDER, _CURVE)


# The transfers.

COUNT = 128


def send(channel: Channel, source: Source = system) -> np.ndarray:
    """Plays the sender, who ends with both seeds.

    Args:
      channel: to the peer's :func:`receive`.
      source: where the secret number comes from.

    Returns:
      seeds, uint8 [128, 2, 16]: uniform to anyone who knows neither side's secrets.

    Raises:
      ChannelError: a message did not arrive, or is not a list of points that the protocol can produce.
    """
    number = secret_number(source)
    numbers = number, inverse(number, secret_number(source))
    mine = encode_point(number.public_key())
    channel.send("base-ot.sender", mine)
    data = channel.receive("base-ot.receiver", COUNT * X_BYTES).tobytes()
    seeds = []
    for index in range(COUNT):
        theirs = data[index * X_BYTES : (index + 1) * X_BYTES]
        try:
            point = decode_x(theirs)
        except _validate.InputError as fault:
            channel.refuse(f"base OT {index}: {fault}")
        seeds += [_seed(index, mine, theirs, multiply(each, point)) for each in numbers]
    return np.frombuffer(b"".join(seeds), np.uint8).reshape(COUNT, 2, SEED_BYTES).copy()


def receive(channel: Channel, choices: np.ndarray, source: Source = system) -> np.ndarray:
    """Plays the receiver, who ends with one seed of two.

    Args:
      channel: to the peer's :func:`send`.
      choices: bool [128], which of the two seeds to receive.
      source: where the secret numbers come from.

    Returns:
      seeds, uint8 [128, 16]: ``send``'s ``seeds[i, choices[i]]``.

    Raises:
      InputError: the choices have another shape or type.
      ChannelError: a message did not arrive, or is not a point that the protocol can produce.
    """
    if choices.shape != (COUNT,) or choices.dtype != bool:
        raise _validate.expected("choices", f"bool [{COUNT}]", f"{choices.dtype} {list(choices.shape)}")
    numbers = [secret_number(source) for _ in range(COUNT)]
    theirs = channel.receive("base-ot.sender", POINT_BYTES).tobytes()
    try:
        point = decode_point(theirs)
    except _validate.InputError as fault:
        channel.refuse(f"base OT: {fault}")
    both = b"".join(_x(number.public_key()) + multiply(number, point) for number in numbers)
    places, chosen = np.arange(COUNT), choices.astype(int)
    of_choice = np.frombuffer(both, np.uint8).reshape(COUNT, 2, X_BYTES)
    mine, other = of_choice[places, chosen], of_choice[places, 1 - chosen]
    channel.send("base-ot.receiver", mine)
    seeds = [_seed(index, theirs, mine[index].tobytes(), other[index].tobytes()) for index in range(COUNT)]
    return np.frombuffer(b"".join(seeds), np.uint8).reshape(COUNT, SEED_BYTES).copy()


def _x(point: Point) -> bytes:
    return encode_point(point)[1 : 1 + X_BYTES]


def _seed(index: int, sender: bytes, receiver: bytes, product: bytes) -> bytes:
    hashed = hashlib.sha256(b"dpaudit base OT" + index.to_bytes(4, "big") + sender + receiver + product)
    return hashed.digest()[:SEED_BYTES]
