"""Tests that the stream is AES of a counter for any sizes of draws, and that the system's bytes are bytes."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpaudit import _validate
from dpaudit.secure.crypto import randomness
from dpaudit.secure.crypto.randomness import Stream

SEED = bytes(range(16))


def test_the_stream_is_aes_of_a_counter() -> None:
    blocks = 9_000  # more than is encrypted at once
    counters = b"".join(number.to_bytes(16, "big") for number in range(blocks))
    expected = Cipher(algorithms.AES(SEED), modes.ECB()).encryptor().update(counters)
    assert Stream(SEED).draw(16 * blocks) == expected
    assert Stream(bytes(16)).draw(16).hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"  # AES-128 of zero under zero


def test_pieces_of_any_length_are_the_same_stream() -> None:
    stream = Stream(SEED)
    pieces = [stream.draw(length) for length in (1, 0, 15, 17, 65_536, 65_537, 3)]
    filled = np.zeros(70_001, np.uint8)
    stream.fill(filled)
    whole = b"".join(pieces) + filled.tobytes()
    assert whole == Stream(SEED).draw(len(whole))


def test_seeds_and_system_bytes_differ() -> None:
    assert Stream(SEED).draw(16) != Stream(SEED[::-1]).draw(16)
    drawn = {randomness.system(16) for _ in range(100)}
    assert len(drawn) == 100
    assert {len(value) for value in drawn} == {16}


def test_a_seed_of_another_length_is_refused_without_showing_it() -> None:
    with pytest.raises(_validate.InputError, match=r"^seed: expected 16 bytes, got 15$"):
        Stream(SEED[1:])
