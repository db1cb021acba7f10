"""Runs rounds between separate parties: objects that share only a network and communicate over encrypted channels.

    parties = assemble(protocol, state, memory, {"anna": anna, "bert": bert}, Network())
    releases = parties.play(key, 0)

The result is that of :func:`dpaudit.personalization.boundary.aggregator.run`, computed one device at a time. Outsiders
see the releases, who sent a message to whom, and its length, which the shapes of the protocol determine. Neither
depends on what a device asks for, and the network cannot read contents. The distributor and the aggregator are inside
the boundary but their administrators are not: printing or pickling an aggregator shows only the releases it has made.

Hardware attestation that a machine really runs this program and protects its memory is out of scope. Within one Python
process the parties are separated only by the references they hold. Needs the extra ``secure``.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit.kernels import philox
from dpaudit.personalization.boundary import messages
from dpaudit.personalization.boundary.aggregator import round_keys, silent_release
from dpaudit.personalization.boundary.bounds import Noised
from dpaudit.personalization.boundary.channels import Identity, Links, Network
from dpaudit.personalization.boundary.messages import Terms, terms
from dpaudit.personalization.boundary.processes import Release
from dpaudit.personalization.boundary.protocol import Devices, Protocol, Select, silent
from dpaudit.personalization.boundary.transcript import Transcript

DISTRIBUTOR, AGGREGATOR, SERVER = "distributor", "aggregator", "server"
_A_KEY = jax.eval_shape(lambda: philox.from_key(jax.random.key(0)))  # the type of all keys here


class Device:
    """A user's device, the only place that holds the user's record.

    Args:
      links: to the distributor and the aggregator.
      devices: what it computes, as programs.
      user: its record.
      terms: of the round.
    """

    __slots__ = ("_devices", "_links", "_owed", "_terms", "_user")

    def __init__(self, links: Links, devices: Devices, user: Any, terms: Terms):
        self._links, self._devices, self._user, self._terms = links, devices, user, terms
        self._owed = 0  # slices that were asked for and not yet taken

    def ask(self) -> None:
        """Asks the distributor for what the user needs; first drops the slice of a round that it left, if any."""
        while self._owed:
            self._take()
        self._owed += 1
        request = self._terms.request
        self._send(DISTRIBUTOR, "request", self._devices.select.ask(self._user), request)

    def answer(self, key: jax.Array) -> None:
        """Takes its slice, computes, and sends its message to the aggregator."""
        slice_ = messages.unpack(self._take(), self._terms.slice)
        self._send(AGGREGATOR, "message", self._devices.compute(key, slice_, self._user), self._terms.message)

    def _take(self) -> bytes:
        data = self._links.receive(DISTRIBUTOR, "slice", messages.length(self._terms.slice))
        self._owed -= 1
        return data

    def _send(self, peer: str, kind: str, tree: Any, like: Any) -> None:
        self._links.send(peer, kind, messages.pack(tree, like))


class Distributor:
    """The trusted distributor, which knows who downloaded what and does not reveal it.

    Args:
      links: to the server and all devices.
      take: of :class:`dpaudit.personalization.boundary.protocol.Select`.
      terms: of the round.
    """

    __slots__ = ("_links", "_model", "_take", "_terms")

    def __init__(self, links: Links, take: Callable[[Any, Any], Any], terms: Terms):
        self._links, self._take, self._terms = links, take, terms

    def load(self) -> None:
        """Receives the server's model."""
        model = self._terms.model
        self._model = messages.unpack(self._links.receive(SERVER, "model", messages.length(model)), model)

    def serve(self, device: str) -> None:
        """Sends one device the slice that it asks for."""
        wanted, given = self._terms.request, self._terms.slice
        request = messages.unpack(self._links.receive(device, "request", messages.length(wanted)), wanted)
        slice_ = messages.pack(self._take(jax.tree.map(jnp.asarray, self._model), request), given)
        self._links.send(device, "slice", slice_)


class Aggregator:
    """The trusted aggregator, which adds up messages and forgets them. Its administrator sees only ``outside``.

    Its secrets (keys, the sum so far, the memory of the noise) are in no attribute and are not printed. Pickling or
    copying it gives the result of :meth:`outside`, not an aggregator.

    Args:
      links: to all devices and the server.
      add: of the protocol's devices, as a program.
      protocol: of the round.
      memory: of its processes.
      terms: of the round.
      minimum_users: the least number of users who have to send a message for a round to release anything.
    """

    __slots__ = ("begin", "collect", "keys", "outside", "release")

    begin: Callable[[], None]  # begin(): forgets the messages of a round that was not released
    collect: Callable[[str], None]  # collect(device): takes one device's message, once a round
    release: Callable[[jax.Array], bool]  # release(key): sends the noisy total, or nothing, and begins anew; whether
    outside: Callable[[], list[tuple[str, int, Any]]]  # outside(): (process, number, value) of every release so far
    keys: Callable[
        [jax.Array, int], tuple[jax.Array, jax.Array]
    ]  # keys(key, t): boundary.round_keys of the next round

    def __init__(
        self,
        links: Links,
        add: Callable[[Any, Any], Any],
        protocol: Protocol,
        memory: Any,
        terms: Terms,
        minimum_users: int,
    ):
        total, came, told = None, set(), []
        names = [each.process.name for each in terms.releases]
        let_out = silent_release(protocol, _A_KEY, terms.total, memory)

        def begin() -> None:
            nonlocal total
            total = None
            came.clear()

        def collect(device: str) -> None:
            nonlocal total
            if device in came:
                raise _validate.expected("device", "one that has not sent its message of this round", device)
            like = terms.message
            message = messages.unpack(links.receive(device, "message", messages.length(like)), like)
            total = add(total, _several(message))
            came.add(device)

        def release(key: jax.Array) -> bool:
            nonlocal memory
            if len(came) < minimum_users:
                begin()
                return False
            if total is None:
                raise _validate.expected("release", "a round in which a device sent a message", "none")
            releases, memory = let_out(key, total, memory)
            told.extend(
                (made.process.name, int(made.number), jax.tree.map(np.asarray, made.value)) for made in releases
            )
            begin()
            links.send(SERVER, "releases", messages.pack(releases, terms.releases))
            return True

        self.begin, self.collect, self.release, self.outside = begin, collect, release, lambda: list(told)
        self.keys = lambda key, t: round_keys(key, t, names, memory)

    def __repr__(self) -> str:
        return f"Aggregator(releases={len(self.outside())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.outside(),)


class Server:
    """The untrusted server, which records everything that it receives.

    Args:
      links: to the distributor and the aggregator.
      protocol: of the round.
      state: its own.
      terms: of the round.

    Attributes:
      state: its own, pytree of arrays.
      transcript: all releases.
    """

    def __init__(self, links: Links, protocol: Protocol, state: Any, terms: Terms):
        self._links, self._protocol, self._terms = links, protocol, terms
        self.state, self.transcript = state, Transcript(())

    def broadcast(self) -> None:
        """Sends the distributor its model."""
        model = self._terms.model
        self._links.send(DISTRIBUTOR, "model", messages.pack(self._protocol.broadcast(self.state), model))

    def update(self) -> tuple[Release, ...]:
        """Receives the aggregator's releases, records them and updates the state."""
        like = self._terms.releases
        told = messages.unpack(self._links.receive(AGGREGATOR, "releases", messages.length(like)), like)
        releases = jax.tree.map(jnp.asarray, told)
        self.transcript += Transcript((jax.tree.map(lambda leaf: leaf[None], releases),))
        self.state = self._protocol.update(self.state, releases)
        return releases


class Parties(NamedTuple):
    """The parties of a round.

    Attributes:
      devices: by name.
      distributor, aggregator, server: the others.
      network: between them.
    """

    devices: dict[str, Device]
    distributor: Distributor
    aggregator: Aggregator
    server: Server
    network: Network

    def play(
        self, key: jax.Array, t: int, *, away: Collection[str] = (), leaving: Collection[str] = ()
    ) -> tuple[Release, ...]:
        """Runs round ``t`` of a run with this key on all devices; what a failed round has collected is forgotten.

        Args:
          key: JAX random key, of the run.
          t: number of the round, from 0.
          away: devices that do not take part.
          leaving: devices that drop out after they were served, without sending a message.

        Returns:
          The releases that the server received; empty if too few devices sent a message.

        Raises:
          InputError: an unknown device.
          ChannelError: a message that was lost or tampered with; releases lost on the way to the server count as made.
        """
        for name in (*away, *leaving):
            _validate.one_of(self.devices, device=name)
        self.aggregator.begin()
        devices_key, release_key = self.aggregator.keys(_validate.key(key=key), t)
        self.server.broadcast()
        self.distributor.load()
        for place, (name, device) in enumerate(self.devices.items()):
            if name in away:
                continue
            device.ask()
            self.distributor.serve(name)
            if name in leaving:
                continue
            device.answer(jax.random.fold_in(devices_key, place))
            self.aggregator.collect(name)
        return self.server.update() if self.aggregator.release(release_key) else ()


def assemble(
    protocol: Protocol, state: Any, memory: Any, users: dict[str, Any], network: Network, *, minimum_users: int = 0
) -> Parties:
    """Creates the parties, each with its own key, pins each other's public keys and opens their channels.

    Args:
      protocol: of a round; its devices made by :func:`dpaudit.personalization.boundary.protocol.each`.
      state: of the server.
      memory: of the aggregator; None for the first run of a protocol of
        :func:`dpaudit.personalization.boundary.protocol.private`.
      users: one user's record for each device, by the device's name; all of the same shapes.
      network: that they all use.
      minimum_users: the least number of users who have to send a message for a round to release anything.

    Raises:
      InputError: devices of several kinds or none, a device with a server's name, records of different shapes; a
        function with effects where there is raw data.
    """
    _validate.at_least(0, minimum_users=minimum_users)
    if memory is None and type(protocol.release) is Noised:
        memory = protocol.release.init()
    if not users or set(users) & {DISTRIBUTOR, AGGREGATOR, SERVER}:
        raise _validate.expected("users", "records by names of devices", list(users))
    shapes = {name: str(jax.tree.map(lambda leaf: (jnp.result_type(leaf).name, jnp.shape(leaf)), user))
              for name, user in users.items()}  # fmt: skip
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise _validate.expected("users", f"records of the shape of {first!r}, padded to it, {shapes[first]}",
                                 f"{shape} of {name!r}")  # fmt: skip

    agreed = terms(protocol, state, memory, _several(users[first]))
    devices = _programs(_each(protocol), users[first], agreed)
    own = {name: Identity(name) for name in (*users, DISTRIBUTOR, AGGREGATOR, SERVER)}

    def linked(name: str, *peers: str) -> Links:
        return Links(own[name], network, {peer: own[peer].public for peer in peers})

    links = {name: linked(name, DISTRIBUTOR, AGGREGATOR) for name in (*users, SERVER)}
    links |= {name: linked(name, *users, SERVER) for name in (DISTRIBUTOR, AGGREGATOR)}
    for link in links.values():
        link.hello()
    for link in links.values():
        link.greet()
    return Parties(
        {name: Device(links[name], devices, user, agreed) for name, user in users.items()},
        Distributor(links[DISTRIBUTOR], devices.select.take, agreed),
        Aggregator(links[AGGREGATOR], devices.add, protocol, memory, agreed, minimum_users),
        Server(links[SERVER], protocol, state, agreed),
        network,
    )


def _each(protocol: Protocol) -> Devices:
    if not isinstance(protocol.devices, Devices):
        raise _validate.expected("devices", "what protocol.each makes of one device", protocol.devices)
    return protocol.devices


def _programs(devices: Devices, user: Any, terms: Terms) -> Devices:
    """Returns the same devices with functions as programs without effects: no party runs the developer's Python."""
    messages = jax.eval_shape(_several, terms.message)
    first = silent("add", lambda messages: devices.add(None, messages), messages)
    later = silent("add", devices.add, terms.total, messages)
    return devices._replace(
        select=Select(
            silent("ask", devices.select.ask, user),
            silent("take", devices.select.take, terms.model, terms.request),
        ),
        compute=silent("compute", devices.compute, _A_KEY, terms.slice, user),
        add=lambda total, messages: first(messages) if total is None else later(total, messages),
    )


def _several(message: Any) -> Any:
    """Returns one message with a leading axis, like the messages of several devices."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], message)
