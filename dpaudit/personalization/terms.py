"""What is known of a round before it: the shapes of all that is sent, and so the length of every message."""

from typing import Any, NamedTuple

import jax

from dpaudit.kernels import philox
from dpaudit.personalization.boundary import Devices, Protocol
from dpaudit.personalization.noised import Noised
from dpaudit.personalization.processes import Release


class Terms(NamedTuple):
    """Pytrees of ``jax.ShapeDtypeStruct``.

    Attributes:
      model: from the server to the distributor.
      request: from a device to the distributor; this and the next two are None where the protocol does not say what
        one device does.
      slice: from the distributor to that device.
      message: from a device to the aggregator.
      total: their sum, in the aggregator.
      releases: from the aggregator to the server.
    """

    model: Any
    request: Any
    slice: Any
    message: Any
    total: Any
    releases: tuple[Release, ...]


def terms(protocol: Protocol, state: Any, memory: Any, users: Any) -> Terms:
    """The terms of a protocol; nothing is computed.

    Args:
      protocol, state, memory, users: as for :func:`dpaudit.personalization.boundary.run`.
    """
    if memory is None and type(protocol.release) is Noised:
        memory = protocol.release.init()
    key = philox.from_key(jax.random.key(0))  # of which only the type matters
    model = jax.eval_shape(protocol.broadcast, state)
    total = jax.eval_shape(lambda *given: protocol.devices(*given), key, model, users)
    releases, _ = jax.eval_shape(lambda *given: protocol.release(*given), key, total, memory)
    if not isinstance(protocol.devices, Devices):
        return Terms(model, None, None, None, total, releases)

    select, compute, *_ = protocol.devices
    user = jax.eval_shape(lambda users: jax.tree.map(lambda leaf: leaf[0], users), users)
    request = jax.eval_shape(select.ask, user)
    part = jax.eval_shape(select.take, model, request)
    return Terms(model, request, part, jax.eval_shape(compute, key, part, user), total, releases)
