"""Opening without a circuit: H1 sends H2 its share, H2 takes its own off and sends back what is left.

A share of a sum that already holds noise which neither server knows (:mod:`ot_noise`), or its own noise, or none, may
be shown: H1's share follows from the result and H2's own, so it tells H2 nothing that the result does not.

Promised, while the two keep to the protocol and do not collude: each learns the opened values and what follows from
them. Never twice with the same noise: the difference of two such results has none.
"""

import numpy as np

from dpaudit import check
from dpaudit.secure import shares
from dpaudit.secure.channel import Channel

KEPT = np.dtype("<i4")  # of a ring of up to 32 bits, on the wire
PAYLOAD_BYTES = {"share": KEPT.itemsize, "opened": KEPT.itemsize}  # that one coordinate costs, by message


def first(channel: Channel, share: np.ndarray, *, ring_bits: int) -> np.ndarray:
    """H1's side, with the peer's :func:`second`.

    Args:
      channel: to the peer.
      share: int64 [d] in the ring, its share of the sum with whatever noise there is.
      ring_bits: N + 1, 2 to 32.

    Returns:
      int64 [d]: the two shares' difference in the ring.

    Raises:
      InputError: a share that is none.
      ChannelError: a message that did not come through, or values outside the ring.
    """
    channel.send("share", checked(share, len(share), ring_bits).astype(KEPT))
    return receive(channel, "opened", len(share), ring_bits)


def second(channel: Channel, share: np.ndarray, *, ring_bits: int) -> np.ndarray:
    """H2's side: the same values. Arguments and errors: as for the peer's."""
    checked(share, len(share), ring_bits)
    opened = shares.join(receive(channel, "share", len(share), ring_bits), share, ring_bits=ring_bits)
    channel.send("opened", opened.astype(KEPT))
    return opened


def receive(channel: Channel, kind: str, count: int, ring_bits: int) -> np.ndarray:
    """The next message's ``count`` numbers of the ring, int64; ChannelError where one is outside it."""
    values = channel.receive(kind, KEPT.itemsize * count).view(KEPT).astype(np.int64)
    half = 1 << (ring_bits - 1)
    if not _inside(values, half):
        channel.refuse(f"receiving {kind!r}: values outside [{-half}, {half})")
    return values


def checked(share: np.ndarray, count: int, ring_bits: int) -> np.ndarray:
    """A share of ``count`` numbers of the ring, if it is one; InputError, which repeats no number of it, otherwise."""
    half = 1 << (shares.checked_ring(ring_bits) - 1)
    found = f"{share.dtype} {list(share.shape)}"
    if found != f"int64 [{count}]" or not _inside(share, half):
        wanted = f"int64 [{count}] in [{-half}, {half})"
        raise check.expected("share", wanted, found)
    return share


def _inside(values: np.ndarray, half: int) -> bool:
    return bool(((values >= -half) & (values < half)).all())
