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
    negative = base_transfers.decode_point(textbook.encode(textbook.negative(textbook.times(7))))
    assert base_transfers.multiply(_secret(number), negative) == expected[0].to_bytes(32, "big")


@pytest.mark.parametrize("number", NUMBERS)
def test_inverses_are_those_modulo_the_order_whatever_the_blind(number: int) -> None:
    for blind in (1, 2, NUMBERS[-1] // 3, textbook.ORDER - 1):
        found = base_transfers.inverse(_secret(number), _secret(blind)).private_numbers().private_value
        assert found * number % textbook.ORDER == 1


def test_a_point_is_known_by_its_x_up_to_its_sign() -> None:
    for number in (7, 8, NUMBERS[-1]):
        point = textbook.times(number)
        assert point is not None
        found = base_transfers.encode_point(base_transfers.decode_x(point[0].to_bytes(32, "big")))
        assert found in (textbook.encode(point), textbook.encode(textbook.negative(point)))
    outside = next(x for x in range(1, 99) if not textbook.on_curve(x))
    for data in (outside.to_bytes(32, "big"), textbook.FIELD.to_bytes(32, "big"), bytes(31), bytes(33)):
        with pytest.raises(_validate.InputError, match=r"^point: expected 32 bytes, the x of a point of P-256, got"):
            base_transfers.decode_x(data)


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
