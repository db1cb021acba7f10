"""Compares releases of both worlds under the same keys: finds large shifts, shared noise, and values that are not
finite."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

KEYS = 32  # a binary release of two clients agrees by chance on all of them with probability 2^-32
SHIFT_KEYS = 8  # under some keys a sampled record is left out


class Shift(NamedTuple):
    """A distance between two releases under one key: of x0 + s (x1 - x0) for two factors s."""

    size: float
    rounding: float
    factors: tuple[float, float]


def not_finite(release: Callable[..., Any], keys: jax.Array, x: Any) -> bool:
    """Tells whether some release of x holds NaN or infinity."""
    leaves = [leaf for key in keys[:SHIFT_KEYS] for leaf in jax.tree.leaves(release(key, x))]
    return any(not np.isfinite(_wide(leaf)).all() for leaf in leaves if _is_real(leaf))


def largest_shift(
    release: Callable[..., Any], keys: jax.Array, pairs: Sequence[tuple[float, float]], x0: Any, x1: Any, order: float
) -> Shift:
    """Finds the largest |release(x0 + s (x1 - x0)) - release(x0 + t (x1 - x0))|, less its rounding, over ``pairs`` (s,
    t).

    For additive noise this is what the record changes before the noise. Only what differs between x0 and x1 moves, so
    that the two stay neighbours. A shift that is not finite counts as infinite.
    """
    inputs = {factor: _stretched(x0, x1, factor) for pair in pairs for factor in pair}
    found = []
    for key in keys[:SHIFT_KEYS]:
        flat = {factor: _flat(release(key, x)) for factor, x in inputs.items()}
        found += [_shift(flat[pair[0]], flat[pair[1]], pair, order) for pair in pairs]
    return max(found, key=lambda shift: shift.size - shift.rounding if math.isfinite(shift.size) else math.inf)


def _shift(left: np.ndarray, right: np.ndarray, pair: tuple[float, float], order: float) -> Shift:
    size = float(np.linalg.norm(right - left, order)) if left.size else 0.0
    largest = max(np.abs(left).max(initial=0), np.abs(right).max(initial=0))
    rounding = 8 * float(np.finfo(np.float32).eps) * float(largest) * math.sqrt(left.size)
    return Shift(math.inf if math.isnan(size) else size, rounding, pair)


def shares_noise(release: Callable[..., Any], keys: jax.Array, x0: Any, x1: Any, per_client: bool | None) -> bool:
    """Tells whether clients with equal inputs get equal releases under every key, though the releases depend on the
    key.

    With ``per_client`` None, only where every client's release is seen to depend on that client's input alone.
    """
    clients = _clients(x0, least_rank=1 if per_client else 2)
    if clients is None or per_client is False:
        return False
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf)[:1], jnp.shape(leaf)), x0)
    for rows in _released_rows(release, keys, same, clients):
        groups: dict[bytes, list[int]] = {}
        for client in range(clients):
            groups.setdefault(rows[:, client].tobytes(), []).append(client)
        shared = [group for group in groups.values() if len(group) > 1]
        random = any((rows[1:, group[0]] != rows[:1, group[0]]).any() for group in shared)
        if random and (per_client or _is_local(release, keys, same, (x0, x1), clients)):
            return True
    return False


def _is_local(release: Callable[..., Any], keys: jax.Array, same: Any, worlds: Sequence[Any], clients: int) -> bool:
    """Tells whether another input of client 0 changes the release of client 0 and of no other."""
    for world in worlds:
        for client in range(clients):
            changed = jax.tree.map(lambda s, w, c=client: jnp.asarray(s).at[0].set(jnp.asarray(w)[c]), same, world)
            if all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(changed), jax.tree.leaves(same), strict=True)):
                continue
            before, after = (list(_released_rows(release, keys, x, clients)) for x in (same, changed))
            moved = [(a != b).any(axis=(0, *range(2, a.ndim))) for a, b in zip(before, after, strict=True)]
            return all(not m[1:].any() for m in moved) and any(m[0] for m in moved)
    return False


def _released_rows(release: Callable[..., Any], keys: jax.Array, x: Any, clients: int) -> Iterator[np.ndarray]:
    """Yields each leaf of the release that has a row per client, [keys, clients, ...]."""
    releases = [jax.tree.leaves(release(key, x)) for key in keys]
    for leaves in zip(*releases, strict=True):
        if np.ndim(leaves[0]) and np.shape(leaves[0])[0] == clients:
            yield np.stack([np.asarray(leaf) for leaf in leaves])


def _clients(x: Any, least_rank: int) -> int | None:
    """Returns the length of the leading axis that all inputs share, if it can be one of clients."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    leading = {shape[:1] for shape in shapes}
    if len(leading) != 1 or max(map(len, shapes)) < least_rank or leading == {()}:
        return None
    (clients,) = leading.pop()
    return clients if clients >= 2 else None


def _stretched(x0: Any, x1: Any, factor: float) -> Any:
    """Returns x0 + factor (x1 - x0); a leaf that is not floating takes its value in x1."""

    def move(a: Any, b: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(b), jnp.inexact):
            return b
        return jnp.asarray(a + factor * (jnp.asarray(b) - a), jnp.result_type(b))

    return (x0, x1)[int(factor)] if factor in (0, 1) else jax.tree.map(move, x0, x1)


def _flat(release: Any) -> np.ndarray:
    leaves = [_wide(leaf).ravel() for leaf in jax.tree.leaves(release) if _is_real(leaf)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def _is_real(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _wide(leaf: Any) -> np.ndarray:
    return np.asarray(leaf).astype(np.float64)
