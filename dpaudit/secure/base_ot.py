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

from dpaudit import check
from dpaudit.secure import p256
from dpaudit.secure.channel import Channel
from dpaudit.secure.randomness import SEED_BYTES, Source, system

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
    number = p256.secret(source)
    mine = number.public_key()
    channel.send("base-ot.sender", p256.encode(mine))
    data = channel.receive("base-ot.receiver", COUNT * p256.POINT_BYTES).tobytes()
    minus_mine = p256.negative(mine)
    seeds = []
    for index in range(COUNT):
        theirs = data[index * p256.POINT_BYTES : (index + 1) * p256.POINT_BYTES]
        try:
            point = p256.decode(theirs)
            points = point, p256.add(point, minus_mine, blind=1)
        except check.InputError as fault:
            channel.refuse(f"base OT {index}: {fault}")
        seeds += [_seed(index, p256.encode(mine), theirs, p256.times(number, point)) for point in points]
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
        raise check.expected("choices", f"bool [{COUNT}]", f"{choices.dtype} {list(choices.shape)}")
    numbers = [p256.secret(source) for _ in range(COUNT)]
    their_data = channel.receive("base-ot.sender", p256.POINT_BYTES).tobytes()
    try:
        theirs = p256.decode(their_data)
        both = [_either(number.public_key(), theirs, source) for number in numbers]
    except check.InputError as fault:
        channel.refuse(f"base OT: {fault}")
    mine = np.frombuffer(b"".join(both), np.uint8).reshape(COUNT, 2, -1)[np.arange(COUNT), choices.astype(int)]
    channel.send("base-ot.receiver", mine)
    seeds = [
        _seed(index, their_data, mine[index].tobytes(), p256.times(number, theirs))
        for index, number in enumerate(numbers)
    ]
    return np.frombuffer(b"".join(seeds), np.uint8).reshape(COUNT, SEED_BYTES).copy()


def _either(point: p256.Point, theirs: p256.Point, source: Source) -> bytes:
    """What would be sent for choice 0, then for choice 1."""
    return p256.encode(point) + p256.encode(p256.add(point, theirs, blind=int.from_bytes(source(32), "big")))


def _seed(index: int, sender: bytes, receiver: bytes, product: bytes) -> bytes:
    hashed = hashlib.sha256(b"dpaudit base OT" + index.to_bytes(4, "big") + sender + receiver + product)
    return hashed.digest()[:SEED_BYTES]
