"""Computes on P-256 as in a textbook, as an oracle: double and add on affine points, slow and not secret."""

FIELD = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
GENERATOR = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

Affine = tuple[int, int] | None  # None: the point at infinity


def add(p: Affine, q: Affine) -> Affine:
    """Adds two points, in all cases."""
    if p is None or q is None:
        return p or q
    if p[0] == q[0]:
        if p[1] != q[1]:
            return None
        slope = 3 * (p[0] ** 2 - 1) * pow(2 * p[1], FIELD - 2, FIELD)  # the curve is y^2 = x^3 - 3x + b
    else:
        slope = (p[1] - q[1]) * pow(p[0] - q[0], FIELD - 2, FIELD)
    x = (slope**2 - p[0] - q[0]) % FIELD
    return x, (slope * (p[0] - x) - p[1]) % FIELD


def times(number: int, point: Affine = GENERATOR) -> Affine:
    """Multiplies a point by a number, bit by bit."""
    total = None
    for bit in bin(number % ORDER)[2:]:
        total = add(total, total)
        total = add(total, point) if bit == "1" else total
    return total


def negative(point: Affine) -> Affine:
    """Returns -P."""
    return point and (point[0], -point[1] % FIELD)


def on_curve(x: int) -> bool:
    """Tells whether x is that of a point, by Euler's criterion."""
    b = (GENERATOR[1] ** 2 - GENERATOR[0] ** 3 + 3 * GENERATOR[0]) % FIELD
    return pow(x**3 - 3 * x + b, (FIELD - 1) // 2, FIELD) in (0, 1)


def encode(point: Affine) -> bytes:
    """Encodes a point as 4, x, y."""
    assert point is not None
    return b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")
