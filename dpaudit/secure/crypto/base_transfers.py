"""Runs 128 random oblivious transfers by public-key cryptography, once a session; all later transfers extend them.

For each index the sender ends with two seeds, the receiver with the one that its choice bit selects. With A = aG the
sender's point and B = bG + cA the receiver's for choice c, the seeds are hashes of aB and of a(B - A) = aB - a^2 G;
the receiver knows bA, which is seed number c of the two. Each index has a b of its own, and its number, A and B are
hashed with the product.

Guaranteed against parties that follow the protocol and do not collude (semi-honest): whatever c is, B is uniform to
within 2^-250, so the sender learns nothing about the choices; the receiver's other seed is as good as random while the
computational Diffie-Hellman problem on P-256 is hard and SHA-256 behaves like a random oracle. Every received point is
checked to lie on the curve. Nothing is guaranteed against parties that depart from the protocol.

OpenSSL multiplies secret numbers in constant time. It offers no addition of points, which is done here with Python's
integers, whose running time is not constant. The only secret among them is the receiver's bG, which enters a single
addition, computed for either choice and with a blinded inversion; only all 128 results are sent together.

Source: Chou and Orlandi, The simplest protocol for oblivious transfer (2015), with the index and both points in the
hash.
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
_CURVE = ec.SECP256R1()
_FIELD = 2**256 - 2**224 + 2**192 + 2**96 - 1
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


def multiply(number: Secret, point: Point) -> bytes:
    """Returns x(aP), 32 bytes: the same for P and -P."""
    return number.exchange(ec.ECDH(), point)


def add_points(point: Point, other: Point, blind: int) -> Point:
    """Adds two points of different x, by the chord through them.

    Args:
      point, other: P and Q.
      blind: a number that the field's prime does not divide: 1 where P and Q are public. A random one makes the time
        of the inversion, which varies most of all operations, independent of secret points. With secret points, call
        this once only, so that its time cannot be measured apart from the rest.

    Raises:
      InputError: P = Q or P = -Q.

    Source: SEC 1, section 2.2.1, rule 4.
    """
    p, q = point.public_numbers(), other.public_numbers()
    if p.x == q.x:
        raise _validate.expected("point", "neither its summand nor the negative of it", "the same x")
    slope = (q.y - p.y) * blind * pow((q.x - p.x) * blind, -1, _FIELD) % _FIELD
    x = (slope * slope - p.x - q.x) % _FIELD
    y = (slope * (p.x - x) - p.y) % _FIELD
    return ec.EllipticCurvePublicNumbers(x, y, _CURVE).public_key()


def negate_point(point: Point) -> Point:
    """Returns -P."""
    p = point.public_numbers()
    return ec.EllipticCurvePublicNumbers(p.x, _FIELD - p.y, _CURVE).public_key()


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
    mine = number.public_key()
    channel.send("base-ot.sender", encode_point(mine))
    data = channel.receive("base-ot.receiver", COUNT * POINT_BYTES).tobytes()
    minus_mine = negate_point(mine)
    seeds = []
    for index in range(COUNT):
        theirs = data[index * POINT_BYTES : (index + 1) * POINT_BYTES]
        try:
            point = decode_point(theirs)
            points = point, add_points(point, minus_mine, blind=1)
        except _validate.InputError as fault:
            channel.refuse(f"base OT {index}: {fault}")
        seeds += [_seed(index, encode_point(mine), theirs, multiply(number, point)) for point in points]
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
    their_data = channel.receive("base-ot.sender", POINT_BYTES).tobytes()
    try:
        theirs = decode_point(their_data)
        both = [_either(number.public_key(), theirs, source) for number in numbers]
    except _validate.InputError as fault:
        channel.refuse(f"base OT: {fault}")
    mine = np.frombuffer(b"".join(both), np.uint8).reshape(COUNT, 2, -1)[np.arange(COUNT), choices.astype(int)]
    channel.send("base-ot.receiver", mine)
    seeds = [
        _seed(index, their_data, mine[index].tobytes(), multiply(number, theirs))
        for index, number in enumerate(numbers)
    ]
    return np.frombuffer(b"".join(seeds), np.uint8).reshape(COUNT, SEED_BYTES).copy()


def _either(point: Point, theirs: Point, source: Source) -> bytes:
    """Returns the message for choice 0, then that for choice 1."""
    return encode_point(point) + encode_point(add_points(point, theirs, blind=int.from_bytes(source(32), "big")))


def _seed(index: int, sender: bytes, receiver: bytes, product: bytes) -> bytes:
    hashed = hashlib.sha256(b"dpaudit base OT" + index.to_bytes(4, "big") + sender + receiver + product)
    return hashed.digest()[:SEED_BYTES]
