"""Points of the curve P-256: OpenSSL multiplies them, and Python adds, which OpenSSL's interface here does not offer.

Every product with a secret number is OpenSSL's, in constant time. Python's integers are not constant in time: what
:func:`add` is given should be public, or secret for one single addition whose time nobody can tell from others.
"""

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dpaudit import check
from dpaudit.secure.randomness import Source

Secret = ec.EllipticCurvePrivateKey  # a number a in [1, order), with the point aG
Point = ec.EllipticCurvePublicKey  # of the curve, and not at infinity: OpenSSL makes no other

POINT_BYTES = 65  # uncompressed: 4, then x and y as 32 bytes each (SEC 1, section 2.3.3)
_CURVE = ec.SECP256R1()
_FIELD = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def secret(source: Source) -> Secret:
    """A uniform secret number; drawn again where 32 bytes are no number in [1, order), once in 2^32 times."""
    while not 0 < (number := int.from_bytes(source(32), "big")) < _ORDER:
        pass
    return ec.derive_private_key(number, _CURVE)


def encode(point: Point) -> bytes:
    """The point's 65 bytes."""
    return point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def decode(data: bytes) -> Point:
    """The point of these 65 bytes.

    Raises:
      InputError: anything but the uncompressed encoding of a point of the curve.
    """
    if len(data) == POINT_BYTES:
        try:
            return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, data)
        except ValueError:
            pass
    raise check.expected("point", f"{POINT_BYTES} bytes of an uncompressed point of P-256", data.hex())


def times(number: Secret, point: Point) -> bytes:
    """x(aP), 32 bytes: the same for P and -P."""
    return number.exchange(ec.ECDH(), point)


def add(point: Point, other: Point, blind: int) -> Point:
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
        raise check.expected("point", "neither its summand nor the negative of it", "the same x")
    slope = (q.y - p.y) * blind * pow((q.x - p.x) * blind, -1, _FIELD) % _FIELD
    x = (slope * slope - p.x - q.x) % _FIELD
    y = (slope * (p.x - x) - p.y) % _FIELD
    return ec.EllipticCurvePublicNumbers(x, y, _CURVE).public_key()


def negative(point: Point) -> Point:
    """-P."""
    p = point.public_numbers()
    return ec.EllipticCurvePublicNumbers(p.x, _FIELD - p.y, _CURVE).public_key()
