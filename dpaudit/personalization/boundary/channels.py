"""Authenticated channels between parties that know each other's public keys, over a network that sees everything.

Both ends contribute a one-time X25519 key e beside their long-term key s, and derive, with HKDF-SHA256 over the four
agreements (e e', e s', s e', s s') and both ends' names and public keys, one ChaCha20-Poly1305 key a direction. A peer
whose long-term key is not the one that was pinned derives others, so that its first message is refused; recorded
traffic stays closed when long-term keys leak later. Message n of a direction has nonce n, its kind is authenticated
with it, and its payload is padded to a length that was agreed in advance. What is on the network::

    number, 8 bytes | encrypted: length of the payload, 8 bytes; payload; zeros | tag, 16 bytes

Needs the extra ``secure`` (cryptography). This is for simulations with real parties: no one has reviewed it for more.
"""

import math
import struct
from collections import deque
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpaudit import _validate

OVERHEAD = 8 + 8 + 16  # bytes that a message has beyond its padded payload
_NUMBER = struct.Struct("<Q")
_PROTOCOL = b"dpaudit personalization channel 1"


class ChannelError(RuntimeError):
    """A message is not what the peer sent, or not when it was to come; the channel is closed for good."""


class Identity:
    """A party's name and long-term key. It prints and pickles as nothing but what is public."""

    __slots__ = ("_key", "name", "public")

    def __init__(self, name: str):
        self.name = name
        self._key = X25519PrivateKey.generate()
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, public={self.public.hex()})"

    def __reduce__(self) -> NoReturn:
        raise _validate.expected("Identity", "its public key to be copied", "a copy of the private one")

    def agree(self, public: bytes) -> bytes:
        """The X25519 agreement of the long-term key with a public one."""
        return _agreed(self._key, public)


class Channel:
    """One end. ``hello`` goes to the peer, the peer's to ``greet``; then ``seal`` and ``open``.

    Args:
      own: this end.
      peer: the other end's name, not the own one.
      public: the peer's long-term public key, known beforehand, 32 bytes.

    Attributes:
      hello: one-time public key for the peer, 32 bytes.
    """

    __slots__ = ("_closed", "_ephemeral", "_next", "_open", "_own", "_peer", "_public", "_seal", "hello")

    def __init__(self, own: Identity, peer: str, public: bytes):
        if peer == own.name:
            raise _validate.expected("peer", f"another name than {own.name!r}", peer)
        self._own, self._peer, self._public = own, peer, public
        self._ephemeral: X25519PrivateKey | None = X25519PrivateKey.generate()
        self.hello: bytes = self._ephemeral.public_key().public_bytes_raw()
        self._closed = "no keys yet"
        self._next = [0, 0]  # numbers of the next message: sent, received

    def greet(self, hello: bytes) -> None:
        """Derives the keys, once.

        Raises:
          ChannelError: no public key, or a second one.
        """
        if self._ephemeral is None:
            self._refuse("a second hello came")
        own, first = self._ephemeral, self._own.name < self._peer
        try:
            crossed = [_agreed(own, self._public), self._own.agree(hello)]
            shared = [_agreed(own, hello), *(crossed if first else crossed[::-1]), self._own.agree(self._public)]
        except ValueError:
            self._refuse("its hello is no public key")
        ends = [
            (self._own.name.encode(), self._own.public, self.hello),
            (self._peer.encode(), self._public, hello),
        ]
        about = [_PROTOCOL, *(part for end in (ends if first else ends[::-1]) for part in end)]
        info = b"".join(_NUMBER.pack(len(part)) + part for part in about)
        keys = HKDF(SHA256(), 64, None, info).derive(b"".join(shared))
        sent, received = (keys[:32], keys[32:]) if first else (keys[32:], keys[:32])
        self._seal, self._open = ChaCha20Poly1305(sent), ChaCha20Poly1305(received)
        self._ephemeral, self._closed = None, ""

    def seal(self, kind: str, payload: bytes, length: int) -> bytes:
        """The next message for the peer, ``length + OVERHEAD`` bytes whatever the payload.

        Args:
          kind: that the peer has to expect.
          payload: at most ``length`` bytes.
          length: agreed for this kind.

        Raises:
          InputError: a longer payload.
          ChannelError: closed.
        """
        self._usable()
        if len(payload) > length:
            raise _validate.expected("payload", f"at most {length} bytes", f"{len(payload)} bytes")
        number = _NUMBER.pack(self._next[0])
        self._next[0] += 1
        padded = _NUMBER.pack(len(payload)) + payload.ljust(length, b"\0")
        return number + self._seal.encrypt(_nonce(number), padded, kind.encode())

    def open(self, kind: str, message: bytes, length: int) -> bytes:
        """The payload of the peer's next message.

        Raises:
          ChannelError: a message that was cut, changed, sent before, held back, meant for another direction or of
            another kind; or not by this peer. The channel is closed.
        """
        self._usable()
        doing = f"{kind!r}, message {self._next[1]}"
        if len(message) != length + OVERHEAD:
            self._refuse(f"{doing}: expected {length + OVERHEAD} bytes, got {len(message)}")
        number, sealed = message[: _NUMBER.size], message[_NUMBER.size :]
        (came,) = _NUMBER.unpack(number)
        if came != self._next[1]:
            self._refuse(f"{doing}: message {came} came, which was sent before or ahead of its turn")
        try:
            padded = self._open.decrypt(_nonce(number), sealed, kind.encode())
        except InvalidTag:
            self._refuse(f"{doing}: what came was changed on the way, or is not this peer's of this kind")
        self._next[1] += 1
        (used,) = _NUMBER.unpack_from(padded)
        return padded[_NUMBER.size : _NUMBER.size + used]

    def _usable(self) -> None:
        if self._closed:
            raise ChannelError(f"channel of {self._own.name!r} to {self._peer!r}: closed ({self._closed})")

    def _refuse(self, reason: str) -> NoReturn:
        self._closed = reason
        raise ChannelError(f"channel of {self._own.name!r} to {self._peer!r}: {reason}")


class Sent(NamedTuple):
    """A message as the network sees it.

    Attributes:
      sender, receiver: names.
      message: bytes.
    """

    sender: str
    receiver: str
    message: bytes


class Network:
    """Carries messages between parties, in order, and keeps them all: the network is untrusted.

    Attributes:
      log: every :class:`Sent`, in order.
    """

    def __init__(self) -> None:
        self.log: list[Sent] = []
        self._waiting: dict[tuple[str, str], deque[bytes]] = {}

    def send(self, sender: str, receiver: str, message: bytes) -> None:
        """Takes a message."""
        self.log.append(Sent(sender, receiver, message))
        self._waiting.setdefault((sender, receiver), deque()).append(message)

    def receive(self, sender: str, receiver: str) -> bytes:
        """The next message between these two.

        Raises:
          ChannelError: nothing is waiting.
        """
        waiting = self._waiting.get((sender, receiver))
        if not waiting:
            raise ChannelError(f"channel of {receiver!r} to {sender!r}: nothing came")
        return waiting.popleft()

    def traffic(self) -> list[tuple[str, str, int]]:
        """(sender, receiver, bytes) of every message: what is left to see of contents that are closed."""
        return [(sent.sender, sent.receiver, len(sent.message)) for sent in self.log]


class Links:
    """A party's channels.

    Args:
      own: the party.
      network: that carries its messages.
      peers: long-term public keys by name, pinned.
    """

    def __init__(self, own: Identity, network: Network, peers: dict[str, bytes]):
        self._name, self._network = own.name, network
        self._channels = {name: Channel(own, name, public) for name, public in peers.items()}

    def hello(self) -> None:
        """Sends every peer a one-time key."""
        for name, channel in self._channels.items():
            self._network.send(self._name, name, channel.hello)

    def greet(self) -> None:
        """Takes every peer's."""
        for name, channel in self._channels.items():
            channel.greet(self._network.receive(name, self._name))

    def send(self, peer: str, kind: str, payload: bytes, length: int) -> None:
        """One message, as :meth:`Channel.seal` makes it."""
        self._network.send(self._name, peer, self._channels[peer].seal(kind, payload, length))

    def receive(self, peer: str, kind: str, length: int) -> bytes:
        """One payload, as :meth:`Channel.open` finds it."""
        return self._channels[peer].open(kind, self._network.receive(peer, self._name), length)


def _agreed(key: X25519PrivateKey, public: bytes) -> bytes:
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def _nonce(number: bytes) -> bytes:
    return number.ljust(12, b"\0")


# Pytrees as bytes whose number depends on the shapes alone.


def length(like: Any) -> int:
    """Bytes of :func:`pack` for a pytree of these shapes and types."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(like))


def pack(tree: Any, like: Any) -> bytes:
    """The leaves' bytes, one after the other.

    Args:
      tree: pytree of arrays.
      like: pytree of ``jax.ShapeDtypeStruct``: what the receiver expects.

    Raises:
      InputError: another structure, shape or type than ``like``; the message names no contents.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    found, wanted = ([_kind(leaf) for leaf in several] for several in (arrays, jax.tree.leaves(like)))
    if found != wanted or structure != jax.tree.structure(like):
        raise _validate.expected("message", f"{wanted} in {jax.tree.structure(like)}", f"{found} in {structure}")
    return b"".join(array.tobytes() for array in arrays)


def unpack(data: bytes, like: Any) -> Any:
    """What :func:`pack` packed.

    Raises:
      InputError: another number of bytes.
    """
    if len(data) != length(like):
        raise _validate.expected("message", f"{length(like)} bytes", f"{len(data)} bytes")
    leaves, start = [], 0
    for leaf in jax.tree.leaves(like):
        array = np.frombuffer(data, leaf.dtype, math.prod(leaf.shape), start).reshape(leaf.shape)
        leaves.append(array)
        start += array.nbytes
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _kind(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
