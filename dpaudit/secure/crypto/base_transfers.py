"""128 random oblivious transfers from public-key cryptography, once a session: what all later ones are stretched from.

The sender ends with two seeds an index, the receiver with the one that its choice bit names. With A = aG the
sender's point and B = bG + cA the receiver's for choice c, the seeds are hashes of aB and of a(B - A) = aB - a^2 G;
the receiver has bA, which is number c of the two. Each index has a b of its own, and its number, A and B are hashed
with the product.

Promised against parties that keep to the protocol and do not collude (semi-honest): whatever c is, B is uniform to
within 2^-250, so the sender learns nothing of the choices; the receiver's other seed is as good as random while the
computational Diffie-Hellman problem on P-256 is hard and SHA-256 behaves like a random oracle. Every point received is
checked to lie on the curve. Not promised: anything against parties that depart from the protocol.

Secret numbers are multiplied by OpenSSL. The one secret that Python's integers touch is the receiver's bG, in one
addition of its own, done for either choice and with a blinded inversion, and only all 128 leave together.

Source: Chou and Orlandi, The simplest protocol for oblivious transfer (2015), with the index and both points in the
hash.
"""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dpaudit import _validate
from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto.randomness import SEED_BYTES, Source, system

# Points of the curve P-256: OpenSSL multiplies them, and Python adds, which OpenSSL's interface here does not offer.
#
# Every product with a secret number is OpenSSL's, in constant time. Python's integers are not constant in time: what
# :func:`add_points` is given should be public, or secret for one single addition whose time nobody can tell from others.

Secret = ec.EllipticCurvePrivateKey  # a number a in [1, order), with the point aG
Point = ec.EllipticCurvePublicKey  # of the curve, and not at infinity: OpenSSL makes no other

POINT_BYTES = 65  # uncompressed: 4, then x and y as 32 bytes each (SEC 1, section 2.3.3)
_CURVE = ec.SECP256R1()
_FIELD = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def secret_number(source: Source) -> Secret:
    """A uniform secret number; drawn again where 32 bytes are no number in [1, order), once in 2^32 times."""
    while not 0 < (number := int.from_bytes(source(32), "big")) < _ORDER:
        pass
    return ec.derive_private_key(number, _CURVE)


def encode_point(point: Point) -> bytes:
    """The point's 65 bytes."""
    return point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def decode_point(data: bytes) -> Point:
    """The point of these 65 bytes.

    Raises:
      InputError: anything but the uncompressed encoding of a point of the curve.
    """
    if len(data) == POINT_BYTES:
        try:
            return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, data)
        except ValueError:
            pass
    raise _validate.expected("point", f"{POINT_BYTES} bytes of an uncompressed point of P-256", data.hex())


def multiply(number: Secret, point: Point) -> bytes:
    """x(aP), 32 bytes: the same for P and -P."""
    return number.exchange(ec.ECDH(), point)


def add_points(point: Point, other: Point, blind: int) -> Point:
    """P + Q for two points of different x, by the chord through them.

    Args:
      point, other: P and Q.
      blind: a number that the field's prime does not divide: 1 where P and Q are public; a random one makes the time
        of the inversion, the operation whose time varies most, independent of secret points.

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
    """-P."""
    p = point.public_numbers()
    return ec.EllipticCurvePublicNumbers(p.x, _FIELD - p.y, _CURVE).public_key()


COUNT = 128


def send(channel: Channel, source: Source = system) -> np.ndarray:
    """The side that ends with both seeds.

    Args:
      channel: to the peer's :func:`receive`.
      source: where the secret number comes from.

    Returns:
      seeds, uint8 [128, 2, 16]: uniform to whoever knows neither side's secrets.

    Raises:
      ChannelError: a message that did not come through, or that is no list of points the protocol can lead to.
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
    """The side that ends with one seed of two.

    Args:
      channel: to the peer's :func:`send`.
      choices: bool [128], which of the two.
      source: where the secret numbers come from.

    Returns:
      seeds, uint8 [128, 16]: ``send``'s ``seeds[i, choices[i]]``.

    Raises:
      InputError: choices of another shape or type.
      ChannelError: a message that did not come through, or that is no point the protocol can lead to.
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
    """What would be sent for choice 0, then for choice 1."""
    return encode_point(point) + encode_point(add_points(point, theirs, blind=int.from_bytes(source(32), "big")))


def _seed(index: int, sender: bytes, receiver: bytes, product: bytes) -> bytes:
    hashed = hashlib.sha256(b"dpaudit base OT" + index.to_bytes(4, "big") + sender + receiver + product)
    return hashed.digest()[:SEED_BYTES]
