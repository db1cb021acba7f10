"""Works out the messages of a round before it runs: the shapes of everything sent, and pytrees as bytes.

Both follow from the shapes of the protocol alone, so the length of every message is known to all parties in advance.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit import _validate
from dpaudit.kernels import philox
from dpaudit.personalization.boundary.bounds import Noised
from dpaudit.personalization.boundary.processes import Release
from dpaudit.personalization.boundary.protocol import Devices, Protocol


class Terms(NamedTuple):
    """The shapes of all messages of a round, pytrees of ``jax.ShapeDtypeStruct``.

    Attributes:
      model: from the server to the distributor.
      request: from a device to the distributor. This and the next two are None if the protocol does not define what
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
    """Works out the shapes of a protocol's messages without computing anything.

    Args:
      protocol, state, memory, users: as for :func:`dpaudit.personalization.boundary.aggregator.run`.
    """
    if memory is None and type(protocol.release) is Noised:
        memory = protocol.release.init()
    key = philox.from_key(jax.random.key(0))  # only its type matters
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


def length(like: Any) -> int:
    """Returns the number of bytes that :func:`pack` makes of a pytree of these shapes and types."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(like))


def pack(tree: Any, like: Any) -> bytes:
    """Concatenates the bytes of the leaves.

    Args:
      tree: pytree of arrays.
      like: pytree of ``jax.ShapeDtypeStruct``, as the receiver expects it.

    Raises:
      InputError: another structure, shape or type than ``like``; the error does not show the contents.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    found, wanted = ([_kind(leaf) for leaf in several] for several in (arrays, jax.tree.leaves(like)))
    if found != wanted or structure != jax.tree.structure(like):
        raise _validate.expected("message", f"{wanted} in {jax.tree.structure(like)}", f"{found} in {structure}")
    return b"".join(array.tobytes() for array in arrays)


def unpack(data: bytes, like: Any) -> Any:
    """Restores the pytree that :func:`pack` packed, as NumPy arrays.

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
