"""Connects parties that know each other's public keys by encrypted, authenticated channels over an untrusted network.

A :class:`~dpaudit.secure.channel.Channel` enforces the order, kind and length of messages; the wire beneath it,
:class:`SealedWire`, keeps them secret and authentic. Both ends contribute a one-time X25519 key e beside their
long-term key s. From the four agreements (e e', e s', s e', s s') and both ends' names and public keys they derive,
with HKDF-SHA256, one ChaCha20-Poly1305 key for each direction. A peer whose long-term key is not the expected one
derives other keys, so its first message is refused; recorded traffic stays unreadable if long-term keys leak later.
Message n of a direction has nonce n, and is sent as

    encrypted: the channel's header (kind, number, length), 32 bytes; payload | tag, 16 bytes

The length of a payload is visible, so it must not depend on private data: that of a packed pytree
(:mod:`dpaudit.personalization.boundary.messages`) is a function of its shapes.

Needs the extra ``secure`` (cryptography). It is meant for simulations with real parties; it has not been reviewed for
production use.
"""

import struct
from collections import deque
from typing import NamedTuple, NoReturn

from dpaudit import _validate
from dpaudit.secure.channel import HEADER, Channel, ChannelError

with _validate.extra("secure"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

OVERHEAD = HEADER.size + 16  # bytes of a message beside its payload
SECONDS = 1e9  # no deadline: within one process a message is either there or never arrives
_LENGTH = struct.Struct("<Q")
_PROTOCOL = b"dpaudit personalization channel 2"


class Identity:
    """A party's name and long-term key. Printing it shows only the public key, and it cannot be pickled."""

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
        """Computes the X25519 agreement of the long-term key with a public key."""
        return _agreed(self._key, public)


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
    """Carries messages between parties in order and keeps a copy of each, as an untrusted network may.

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

    def receive(self, sender: str, receiver: str) -> bytes | None:
        """Returns the next message between these two, or None if there is none."""
        waiting = self._waiting.get((sender, receiver))
        return waiting.popleft() if waiting else None

    def traffic(self) -> list[tuple[str, str, int]]:
        """Lists (sender, receiver, bytes) of every message: everything that encryption does not hide."""
        return [(sent.sender, sent.receiver, len(sent.message)) for sent in self.log]


class SealedWire:
    """Encrypts what a channel sends to one peer and authenticates what it reads, once keys are exchanged.

    It is a :class:`~dpaudit.secure.channel.Wire`, closed for good after the first fault.

    Args:
      own: this end.
      peer: the name of the other end.
      public: the peer's long-term public key, known beforehand, 32 bytes.
      network: the network that carries the messages.
    """

    def __init__(self, own: Identity, peer: str, public: bytes, network: Network):
        if peer == own.name:
            raise _validate.expected("peer", f"another name than {own.name!r}", peer)
        self._own, self._peer, self._public, self._network = own, peer, public, network
        self._ephemeral: X25519PrivateKey | None = X25519PrivateKey.generate()
        self._hello = self._ephemeral.public_key().public_bytes_raw()
        self._closed = "no keys yet"
        self._sent = self._received = 0  # numbers of the next messages
        self._read = b""  # the rest of the message that is being read

    def hello(self) -> None:
        """Sends the peer this end's one-time key."""
        self._network.send(self._own.name, self._peer, self._hello)

    def greet(self) -> None:
        """Takes the peer's one-time key and derives the keys of both directions, once.

        Raises:
          ChannelError: no key, something that is no public key, or a second key.
        """
        hello = self._network.receive(self._peer, self._own.name)
        if hello is None:
            self._refuse("no hello came")
        if self._ephemeral is None:
            self._refuse("a second hello came")
        own, first = self._ephemeral, self._own.name < self._peer
        try:
            crossed = [_agreed(own, self._public), self._own.agree(hello)]
            shared = [_agreed(own, hello), *(crossed if first else crossed[::-1]), self._own.agree(self._public)]
        except ValueError:
            self._refuse("its hello is no public key")
        ends = [
            (self._own.name.encode(), self._own.public, self._hello),
            (self._peer.encode(), self._public, hello),
        ]
        about = [_PROTOCOL, *(part for end in (ends if first else ends[::-1]) for part in end)]
        info = b"".join(_LENGTH.pack(len(part)) + part for part in about)
        keys = HKDF(SHA256(), 64, None, info).derive(b"".join(shared))
        sent, received = (keys[:32], keys[32:]) if first else (keys[32:], keys[:32])
        self._seal, self._open = ChaCha20Poly1305(sent), ChaCha20Poly1305(received)
        self._ephemeral, self._closed = None, ""

    def write(self, header: bytes, payload: memoryview, seconds: float) -> None:
        """Sends header and payload as one encrypted message."""
        self._usable()
        self._network.send(
            self._own.name, self._peer, self._seal.encrypt(_nonce(self._sent), header + bytes(payload), None)
        )
        self._sent += 1

    def read_into(self, out: memoryview, seconds: float) -> None:
        """Fills ``out`` with the next bytes of the current message, or of the next one.

        Raises:
          ChannelError: a message that was cut, changed, repeated, held back, meant for the other direction, or not
            sent by this peer. The wire is closed.
          TimeoutError: no message is waiting.
        """
        self._usable()
        if out and not self._read:  # an empty payload has come with its header
            message = self._network.receive(self._peer, self._own.name)
            if message is None:
                raise TimeoutError("nothing came")
            try:
                self._read = self._open.decrypt(_nonce(self._received), message, None)
            except InvalidTag:
                self._refuse(
                    f"message {self._received} was changed on the way, is not the next one, or is not from this peer"
                )
            self._received += 1
        if len(self._read) < len(out):
            self._refuse(f"message {self._received - 1} is shorter than its header says")
        out[:], self._read = self._read[: len(out)], self._read[len(out) :]

    def close(self) -> None:
        """Closes this end; may be called again."""
        self._closed = self._closed or "this side has closed the channel"

    def _usable(self) -> None:
        if self._closed:
            raise ConnectionError(self._closed)

    def _refuse(self, reason: str) -> NoReturn:
        self._closed = reason
        raise ChannelError(reason)


class Links:
    """Holds the channels of one party to all its peers.

    Args:
      own: the party.
      network: the network that carries its messages.
      peers: long-term public keys by name, known beforehand.
    """

    def __init__(self, own: Identity, network: Network, peers: dict[str, bytes]):
        self._name = own.name
        self._wires = {name: SealedWire(own, name, public, network) for name, public in peers.items()}
        self._channels = {name: Channel(wire, SECONDS) for name, wire in self._wires.items()}

    def hello(self) -> None:
        """Sends every peer a one-time key."""
        for wire in self._wires.values():
            wire.hello()

    def greet(self) -> None:
        """Takes every peer's one-time key, after which the channels are open.

        Raises:
          ChannelError: as :meth:`SealedWire.greet` does.
        """
        for peer, wire in self._wires.items():
            try:
                wire.greet()
            except ChannelError as fault:
                raise self._told(peer, fault) from None

    def send(self, peer: str, kind: str, payload: bytes) -> None:
        """Sends one message.

        Raises:
          ChannelError: the channel is closed.
        """
        try:
            self._channels[peer].send(kind, payload)
        except ChannelError as fault:
            raise self._told(peer, fault) from None

    def receive(self, peer: str, kind: str, length: int) -> bytes:
        """Returns the payload of the peer's next message, which must have this kind and length.

        Raises:
          ChannelError: another message, none, or one that was tampered with. The channel is closed.
        """
        try:
            return self._channels[peer].receive(kind, length).tobytes()
        except ChannelError as fault:
            raise self._told(peer, fault) from None

    def _told(self, peer: str, fault: ChannelError) -> ChannelError:
        return ChannelError(f"channel of {self._name!r} to {peer!r}: {fault}")


def _agreed(key: X25519PrivateKey, public: bytes) -> bytes:
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "little")
