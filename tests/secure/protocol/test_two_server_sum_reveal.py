import numpy as np
import pytest

from dpaudit import _validate
from dpaudit.secure.channel import ChannelError
from dpaudit.secure.crypto.randomness import Stream
from dpaudit.secure.crypto.shares import smod
from dpaudit.secure.noise import gaussian
from dpaudit.secure.protocol import in_process, two_server_sum
from tests.secure import sessions
from tests.secure.transcript import record


@pytest.mark.parametrize("ring_bits", [2, 25, 32])
def test_both_learn_the_difference(ring_bits: int) -> None:
    first, second = sessions.shares(1, 70, ring_bits)
    one, two, said = record(
        lambda channel: two_server_sum.reveal_first(channel, first, ring_bits=ring_bits),
        lambda channel: two_server_sum.reveal_second(channel, second, ring_bits=ring_bits),
    )
    np.testing.assert_array_equal(one, smod(first - second, 1 << (ring_bits - 1)))
    np.testing.assert_array_equal(two, one)
    assert said.lengths() == [(kind, 70 * size) for kind, size in two_server_sum.PAYLOAD_BYTES.items()]


def test_a_server_that_adds_its_own_noise_hides_the_sum_from_the_other() -> None:
    """In the baseline without a circuit the result holds both noises: twice the variance of one."""
    sigma, count = 50, 20_000
    noises = [gaussian.sample(sigma, count, Stream(seed * 16).draw) for seed in (b"1", b"2")]
    opened, _ = in_process.together(
        in_process.channels(),
        lambda channel: two_server_sum.reveal_first(channel, 7 + noises[0], ring_bits=25),
        lambda channel: two_server_sum.reveal_second(channel, 4 + noises[1], ring_bits=25),
    )
    error = opened - 3
    assert abs(error.var() / sigma**2 - 2) < 5 * 2 * (2 / count) ** 0.5
    assert abs((error - noises[0]).var() / sigma**2 - 1) < 5 * (2 / count) ** 0.5  # what is left to H1


def test_what_is_no_share_is_refused() -> None:
    channel, _ = in_process.channels()
    for bad in (np.zeros(3, np.int32), np.zeros((3, 1), np.int64), np.full(3, 1 << 24)):
        for side in (two_server_sum.reveal_first, two_server_sum.reveal_second):
            with pytest.raises(
                _validate.InputError, match=r"share: expected int64 \[3\] in \[-16777216, 16777216\), got "
            ):
                side(channel, bad, ring_bits=25)
    with pytest.raises(ChannelError, match=r"receiving 'share': values outside \[-8, 8\)"):
        in_process.together(
            in_process.channels(),
            lambda channel: channel.send("share", np.array([8], "<i4")),
            lambda channel: two_server_sum.reveal_second(channel, np.array([0]), ring_bits=4),
        )
