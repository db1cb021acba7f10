"""Tests OpenSSL's products and our sums of points against a textbook; invalid points are refused."""

import pytest

from dpaudit import _validate
from dpaudit.secure.crypto import base_transfers
from dpaudit.secure.crypto.randomness import Stream
from tests.secure import textbook

SOURCE_SEED = bytes(range(16))
NUMBERS = [1, 2, 3, textbook.ORDER - 1, int.from_bytes(Stream(SOURCE_SEED).draw(32), "big")]


def _secret(number: int) -> base_transfers.Secret:
    return base_transfers.secret_number(lambda count: number.to_bytes(count, "big"))


@pytest.mark.parametrize("number", NUMBERS)
def test_products_are_the_textbook_s(number: int) -> None:
    assert base_transfers.encode_point(_secret(number).public_key()) == textbook.encode(textbook.times(number))
    point = base_transfers.decode_point(textbook.encode(textbook.times(7)))
    expected = textbook.times(7 * number)
    assert expected is not None
    assert base_transfers.multiply(_secret(number), point) == expected[0].to_bytes(32, "big")
    assert base_transfers.multiply(_secret(number), base_transfers.negate_point(point)) == expected[0].to_bytes(
        32, "big"
    )


@pytest.mark.parametrize("a, b", [(1, 2), (2, 1), (NUMBERS[4], 5), (NUMBERS[4], NUMBERS[3]), (10**70, 3**140)])
def test_sums_are_openssl_s_whatever_the_blind(a: int, b: int) -> None:
    p, q = (_secret(number % textbook.ORDER).public_key() for number in (a, b))
    expected = base_transfers.encode_point(_secret((a + b) % textbook.ORDER).public_key())
    for blind in (1, 2**255 + 12345):
        assert base_transfers.encode_point(base_transfers.add_points(p, q, blind)) == expected
    back = base_transfers.add_points(base_transfers.decode_point(expected), base_transfers.negate_point(q), blind=1)
    assert base_transfers.encode_point(back) == base_transfers.encode_point(p)


def test_points_of_one_line_with_infinity_are_refused() -> None:
    point = _secret(9).public_key()
    for other in (point, base_transfers.negate_point(point)):
        with pytest.raises(_validate.InputError, match=r"^point: expected neither its summand nor the negative of it"):
            base_transfers.add_points(point, other, blind=1)


def test_secret_numbers_are_drawn_until_they_fit() -> None:
    drawn = iter([0, textbook.ORDER, 2**256 - 1, 5, 6])
    number = base_transfers.secret_number(lambda count: next(drawn).to_bytes(count, "big"))
    assert number.private_numbers().private_value == 5
    assert next(drawn) == 6


GOOD = textbook.encode(textbook.GENERATOR)


@pytest.mark.parametrize(
    "data",
    [
        GOOD[:-1] + bytes([GOOD[-1] ^ 1]),  # not on the curve
        b"\x02" + GOOD[1:],
        GOOD[:33],
        b"\x02" + GOOD[1:33],  # compressed
        bytes(65),
        bytes(1),  # infinity
        b"\x04" + textbook.FIELD.to_bytes(32, "big") + GOOD[33:],  # a coordinate that is not reduced
        b"",
    ],
)
def test_what_is_no_point_is_refused(data: bytes) -> None:
    with pytest.raises(
        _validate.InputError, match=r"^point: expected 65 bytes of an uncompressed point of P-256, got"
    ):
        base_transfers.decode_point(data)
