"""Makes a game of a function on the host, which counts and attacks treat like one in JAX."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dpaudit.auditing.host import chunks
from dpaudit.auditing.host.chunks import Plan
from dpaudit.auditing.host.encoder import Encoder
from dpaudit.auditing.host.pool import Player, Pool

SECONDS, SECONDS_UNTIL = 1.0, 0.25  # target of a call, and of one after which the audit may stop
CALL_BYTES, CALL_MOST = 1 << 27, 1 << 17  # most bytes of a call's releases; most pairs
BLOCK, BLOCK_NUMBERS = 1 << 12, 1 << 21  # most pairs that are scored at a time, and most numbers in them

Played = TypeVar("Played")


class HostGame(NamedTuple):
    """Trials on the host that run call by call; the counterpart of :class:`dpaudit._engine.game.Game`.

    Attributes:
      player: of the chunks.
      plan: of the trials.
      encoder: of the releases.
      trials: of each world.
      size: pairs of a call, whole chunks.
      read: ``read(leaves [n, 2, *shape]) -> scores [n, 2, ...]``.
      shape: of the scores of a pair, without the axis of a family's attacks.
      begun: the first pairs, encoded, which need not run again.
      mesh: None: all trials are on one host.
    """

    player: Player
    plan: Plan
    encoder: Encoder
    trials: int
    size: int
    read: Callable[[list[np.ndarray]], np.ndarray]
    shape: tuple[int, ...] = (2,)
    begun: list[np.ndarray] | None = None
    mesh: None = None

    def call(self, done: int) -> np.ndarray:
        """Runs the pairs from number ``done`` on and returns their scores, [size, 2, ...]; beyond the last pair they
        are zeros."""
        there = min(self.size, self.trials - done)
        scores = self.read(self._played(done, there))
        padded = np.zeros((self.size, *scores.shape[1:]), scores.dtype)
        padded[:there] = scores
        return padded

    def fitted(self, step: Callable[["HostGame"], Played]) -> tuple[Played, "HostGame"]:
        """Returns (step(game), game): a call on the host always fits into memory."""
        return step(self), self

    def head(self, trials: int) -> np.ndarray:
        """Runs the first pairs and returns their scores, [trials, 2, ...]."""
        parts, done = [], 0
        while done < trials:
            parts.append(self.call(done)[: trials - done])
            done += self.size
        return np.concatenate(parts)

    def first(self, played: np.ndarray, rows: int) -> np.ndarray:
        """Returns the first rows of a call's results."""
        return played[:rows]

    def _played(self, done: int, pairs: int) -> list[np.ndarray]:
        """Returns the arrays of the releases of these pairs, [pairs, 2, *shape] each."""
        parts: list[list[np.ndarray]] = []
        if self.begun is not None and done < len(self.begun[0]):
            known = [leaf[done : done + pairs] for leaf in self.begun]
            parts.append(known)
            pairs, done = pairs - len(known[0]), done + len(known[0])
        if pairs > 0:
            parts.append(self._fresh(done, pairs))
        return parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _fresh(self, done: int, pairs: int) -> list[np.ndarray]:
        first, last = done // self.plan.chunk, -(-(done + pairs) // self.plan.chunk)
        end = -(-min(done + pairs + self.size, self.trials) // self.plan.chunk)
        return joined(self.player.take(range(first, last), range(last, end)))


def joined(worlds: tuple[list[Any], list[Any]]) -> list[np.ndarray]:
    """Joins encoded chunks of both worlds to arrays [n, 2, *shape]."""
    by_world = [[np.concatenate(column) for column in zip(*parts, strict=True)] for parts in worlds]
    return [np.stack(both, axis=1) for both in zip(*by_world, strict=True)]


def call_size(
    plan: Plan, encoder: Encoder, seconds_per_pair: float, *, batch: int | None, until: bool, processes: int
) -> int:
    """Chooses how many pairs a call runs: whole chunks, for about a second, within memory."""
    most = math.ceil(plan.trials / plan.chunk)
    if batch is not None:
        return plan.chunk * min(most, math.ceil(batch / plan.chunk))
    bytes_of_pair = 2 * sum(int(np.prod(shape)) * kind.itemsize for shape, kind in encoder.shapes)
    pairs = (SECONDS_UNTIL if until else SECONDS) * processes / max(seconds_per_pair, 1e-9)
    pairs = min(pairs, CALL_BYTES / max(1, bytes_of_pair), CALL_MOST)
    return plan.chunk * max(1, min(most, int(pairs // plan.chunk)))


def share_out(player: Player, plan: Plan, size: int, processes: int) -> None:
    """Makes a pool divide a call of this size into a few tasks for each process."""
    if isinstance(player, Pool):
        player.chunks_of_task = max(1, math.ceil(size / plan.chunk) // (4 * processes))


def block_of(encoder: Encoder) -> int:
    """Returns how many pairs are scored at a time, always the same, so that no bit of a score depends on the call."""
    width = sum(int(np.prod(shape)) for shape, _ in encoder.shapes)
    return min(BLOCK, 1 << max(4, (BLOCK_NUMBERS // max(1, 2 * width)).bit_length() - 1))


def in_blocks(
    read: Callable[[list[np.ndarray]], np.ndarray], leaves: list[np.ndarray], block: int
) -> list[Callable[[], np.ndarray]]:
    """Returns the scores of blocks of pairs; the last block is padded with copies of its first pair."""

    def part(start: int) -> Callable[[], np.ndarray]:
        def compute() -> np.ndarray:
            own = [leaf[start : start + block] for leaf in leaves]
            there = len(own[0])
            if there < block:
                own = [np.concatenate([leaf, np.repeat(leaf[:1], block - there, axis=0)]) for leaf in own]
            return read(own)[:there]

        return compute

    return [part(start) for start in range(0, len(leaves[0]), block)]


def encoded(encoder: Encoder, plan: Plan, raw: tuple[list[Any], list[Any]]) -> list[np.ndarray]:
    """Encodes chunks of releases of both worlds, [n, 2, *shape]."""
    one, other = ([encoder.encode(batch, plan.features) for batch in world] for world in raw)
    return joined((one, other))


def releases(raw: list[Any], most: int) -> list[Any]:
    """Returns the first releases of chunks as a list."""
    return [release for batch in raw for release in chunks.one_by_one(batch)][:most]
