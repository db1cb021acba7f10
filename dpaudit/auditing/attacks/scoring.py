"""Scores releases by the finalists of a family of attacks, with NumPy or with one program for all mechanisms.

The devices that play a mechanism return its releases as words, which are scored here. The scoring program does not
depend on the mechanism: it is compiled in parallel with the mechanism's own program, and reused for every mechanism
with arrays of the same shapes. Compiling takes a second, in which NumPy scores a million releases.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpaudit._engine import sharding
from dpaudit._engine.game import Game
from dpaudit._engine.sharding import ALIKE, CUT
from dpaudit.auditing.attacks import choose, features, frequencies, network, pilot

SINGLES, TABLES = 6, 3  # finalists: numbers of the family, and their frequency tables
SUMS = ("all coordinates", "all lowest bits", "whole releases", "exact releases")
SCREENED = 2048  # pairs of the pilot on which finalists are picked
FEATURES, FREQUENCIES, NETWORK, OTHERS = range(4)  # what a score needs to be computed

HOST_PAIRS, HOST_WORDS = 1 << 20, 1 << 28  # up to these, NumPy is faster than compiling a program
THREADS, READ_BYTES = 4, 1 << 19  # of NumPy, and of the releases that each reads at a time

Layout = tuple[tuple[tuple[int, ...], str], ...]  # shape and type of every array of a release


class Arrays(NamedTuple):
    """The program's inputs beside the releases: arrays, so that other finalists share the compiled program."""

    reference: Any  # the leaves of one release
    sight: features.Sight
    singles: Any  # [SINGLES], of the family's numbers
    tables: frequencies.Tables
    listed: Any  # [TABLES], numbers that are scored by their frequencies
    sums: Any  # [2, m], which ratios are added up
    patterns: frequencies.Patterns
    repeats: frequencies.Repeats
    network: network.Network


def fitted(
    leaves: list[np.ndarray], given: np.ndarray | None, *, delta: float, confidence: float
) -> tuple[Arrays, np.ndarray]:
    """Fits the finalists' arrays, and returns them with what each number of the family showed on the pilot.

    Args:
      leaves: the pilot's releases, [2, n, *shape] each.
      given: a direction [d] to look along, or None.
      delta, confidence: as for :func:`choose.screen`.
    """
    reference = [leaf[0, 0] for leaf in leaves]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        views = features.View(np, leaves, reference, lead=2)
        sight = pilot.sight(views, given, pilot.coordinates_of_words(leaves, 2))
        numbers = features.read(np, views, sight)
        tables, ratios = frequencies.tables(numbers)
        k, m = len(sight.chosen), numbers.shape[-1]
        few = slice(0, SCREENED)
        shown = choose.screen(numbers[:, few], delta=delta, confidence=confidence)
        by_table = choose.screen(ratios[:, few], delta=delta, confidence=confidence)
        sums = np.zeros((2, m), np.float32)
        sums[0, :k], sums[1, k : 2 * k] = 1, 1
        order = np.argsort(-np.maximum(shown, by_table), kind="stable")
        first = np.arange(min(k, network.INPUTS // 2))  # coordinates that show nothing alone may do so together
        net = network.fitted(numbers, ratios, np.concatenate([first, order[~np.isin(order, first)]]))
        repeats = frequencies.repeats(numbers[..., :k], sight.finest)
    arrays = Arrays(
        reference,
        sight,
        np.argsort(-shown, kind="stable")[:SINGLES].astype(np.int32),
        tables,
        np.argsort(-by_table, kind="stable")[:TABLES].astype(np.int32),
        sums,
        frequencies.patterns(numbers[..., :k]),
        repeats,
        net,
    )
    return arrays, shown


def layout(release: Any) -> Layout:
    """Returns the layout of a release, or of its shapes."""
    return tuple((tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in jax.tree.leaves(release))


def words(release: Any) -> jax.Array:
    """Returns all bits of a release as int32 words, [w]."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(release)]
    wide = [leaf.astype(_whole_words(leaf.dtype)) for leaf in leaves]
    return jnp.concatenate([jax.lax.bitcast_convert_type(leaf, jnp.int32).reshape(-1) for leaf in wide])


def size(arrays: Layout) -> int:
    """Returns how many words :func:`words` makes of a release."""
    return sum(_parts(arrays))


def leaves(words: Any, arrays: Layout) -> list[Any]:
    """Returns the arrays [..., *shape], NumPy's or JAX's, that :func:`words` turned into words [..., w]."""
    found, place = [], 0
    for (shape, name), length in zip(arrays, _parts(arrays), strict=True):
        kind = np.dtype(name)
        part = words[..., place : place + length].view(_whole_words(kind))
        found.append(features.cast(part.reshape(*part.shape[:-1], *shape), kind))
        place += length
    return found


def _parts(arrays: Layout) -> list[int]:
    return [int(np.prod(shape)) * _whole_words(np.dtype(name)).itemsize // 4 for shape, name in arrays]


def _whole_words(kind: np.dtype) -> np.dtype:
    """Returns the type, or a type of 32 bits that holds all its numbers."""
    if kind.itemsize >= 4:
        return kind
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)


def read_on_devices(game: Game, played: jax.Array, *, wanted: np.ndarray, **more: Any) -> jax.Array:
    """Computes every trial's scores where it was played, [n, 2, scores] in float32; scores that are not wanted are 0.

    Args:
      game: that has played.
      played: [n, 2, others + w], scores beside the family and words of both worlds' releases, the bits of each.
      wanted: which of FEATURES, FREQUENCIES and NETWORK to compute.
      more: ``arrays`` of the finalists; ``arrays_of``, the releases' layout; ``others``, how many scores there are
        beside the family; ``block``, trials that are read at a time.
    """
    return scored(played, wanted, **more, mesh=game.mesh)


@partial(jax.jit, static_argnames=("arrays_of", "others", "block", "mesh"))
def scored(
    played: jax.Array, wanted: Any, arrays: Arrays, *, arrays_of: Layout, others: int, block: int, mesh: Mesh | None
) -> jax.Array:
    """Computes :func:`read_on_devices`, as one compiled program."""

    def of_device(played: jax.Array, wanted: Any, arrays: Arrays) -> jax.Array:
        one = partial(_scores, jnp, wanted=wanted, arrays=arrays, arrays_of=arrays_of, others=others)
        found = jax.lax.map(jax.vmap(jax.vmap(one)), played.reshape(-1, block, *played.shape[1:]))
        return found.reshape(-1, *found.shape[2:])

    return sharding.shared_out(of_device, mesh, (CUT, ALIKE, ALIKE), CUT)(played, wanted, arrays)


def soon_read(trials: int, arrays_of: Layout) -> bool:
    """Tells whether NumPy reads all releases in less time than :func:`scored` takes to compile."""
    return trials <= HOST_PAIRS and 2 * trials * size(arrays_of) <= HOST_WORDS


def read_on_host(
    game: Game,
    played: jax.Array,
    *,
    wanted: np.ndarray,
    arrays: Arrays,
    arrays_of: Layout,
    others: int,
    block: int,
    number: int | None = None,
) -> np.ndarray:
    """Does as :func:`read_on_devices` with NumPy, which needs no compilation; with a number, this score alone, [n, 2].

    Each block that the devices play is scored by itself, so that no bit depends on the number of blocks.
    """
    whole = game.first(played, len(played))
    chosen, single, sight = ... if number is None else (..., number), None, arrays.sight
    first = len(sight.directions) + len(sight.spread)
    if number is not None and number < first:
        arrays, chosen = arrays._replace(sight=features.only(sight, number)), (..., 0)
    elif number is not None and number < first + len(arrays.singles):
        single = int(arrays.singles[number - first])

    def read(start: int) -> np.ndarray:
        part = whole[start : start + block]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            if single is not None:
                view = features.View(np, leaves(part[..., others:], arrays_of), arrays.reference, part.ndim - 1)
                return features.read_one(np, view, sight, single)
            return _scores(np, part, wanted=wanted, arrays=arrays, arrays_of=arrays_of, others=others)[chosen]

    with ThreadPoolExecutor(min(THREADS, sharding.cores())) as pool:
        found = np.concatenate(list(pool.map(read, range(0, len(whole), block))))
    return sharding.of_first_process(found) if sharding.several_processes(game.mesh) else found


def of_releases(releases: list[np.ndarray], arrays: Arrays, wanted: np.ndarray, number: Any = ...) -> np.ndarray:
    """Scores releases that are given, with NumPy.

    Args:
      releases: their arrays, [n, *shape] each.
      arrays: of the finalists.
      wanted: which of FEATURES, FREQUENCIES and NETWORK to compute; other scores are 0.
      number: of the one score to return, else all.

    Returns:
      [n, scores] in float64, or [n].
    """
    block = max(1, READ_BYTES // max(1, sum(leaf[0].nbytes for leaf in releases)))

    def read(start: int) -> np.ndarray:
        part = [leaf[start : start + block] for leaf in releases]
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            return of_leaves(np, part, np.zeros((len(part[0]), 0), np.float32), wanted, arrays)[:, number]

    with ThreadPoolExecutor(min(THREADS, sharding.cores())) as pool:
        parts = list(pool.map(read, range(0, len(releases[0]), block)))
    return np.concatenate(parts).astype(np.float64)


def _scores(xp: Any, seen: Any, wanted: Any, arrays: Arrays, *, arrays_of: Layout, others: int) -> Any:
    """Maps what was played of releases, [..., others + w], to their scores, [..., scores]."""
    own = seen[..., :others].view(np.float32)
    return of_leaves(xp, leaves(seen[..., others:], arrays_of), own, wanted, arrays)


def of_leaves(xp: Any, release: list[Any], own: Any, wanted: Any, arrays: Arrays) -> Any:
    """Maps the arrays [..., *shape] of releases, and scores beside the family [..., others], to their scores
    [..., scores]."""
    where = _where if xp is jnp else _where_on_host
    lead, of = own.shape[:-1], arrays.reference
    view = features.View(xp, release, of, len(lead))
    found = [features.project(xp, view.numbers, arrays.sight)]
    singles, listed, m = len(arrays.singles), len(arrays.listed), len(arrays.tables.start)

    def family() -> Any:
        numbers = features.read(xp, features.View(xp, release, of, len(lead)), arrays.sight)  # traced by itself
        k = len(arrays.sight.chosen)

        def ratios() -> Any:
            found = arrays.tables.read(xp, numbers)
            sums = [(weights * found).sum(-1) for weights in arrays.sums]
            whole = arrays.patterns.read(xp, numbers[..., :k])
            exact = where(arrays.repeats.found, lambda: arrays.repeats.read(xp, numbers[..., :k]), lead)
            return xp.concatenate([found, found[..., arrays.listed], xp.stack([*sums, whole, exact], -1)], -1)

        of_tables = where(wanted[FREQUENCIES], ratios, (*lead, m + listed + len(SUMS)))

        def logit() -> Any:
            return arrays.network.read(xp, numbers, of_tables[..., :m])[..., None]

        last = where(wanted[NETWORK], logit, (*lead, 1))
        return xp.concatenate([numbers[..., arrays.singles], of_tables[..., m:], last], -1)

    found.append(where(wanted[FEATURES], family, (*lead, singles + listed + len(SUMS) + 1)))
    return xp.concatenate([features.cast(part, np.float32) for part in (*found, own)], -1)


def _where(wanted: Any, compute: Callable[[], jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Computes, or returns zeros without computing: the decision is one for all trials."""
    return jax.lax.cond(wanted, lambda: compute().astype(jnp.float32), lambda: jnp.zeros(shape, jnp.float32))


def _where_on_host(wanted: Any, compute: Callable[[], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    return compute() if wanted else np.zeros(shape, np.float32)


def blank(game: Game, directed: bool, arrays_of: Layout) -> tuple[Any, ...]:
    """Returns arguments for :func:`scored` that have the shapes of this game's.

    Args:
      game: whose calls are to be scored.
      directed: whether there will be a given direction.
      arrays_of: the releases' layout.
    """
    played = jax.ShapeDtypeStruct((game.size, *game.traced.out_avals[0].shape), np.int32)
    leaves = [np.zeros((2, 16, *shape), kind) for shape, kind in arrays_of]
    width = sum(int(np.prod(shape)) for shape, _ in arrays_of)
    arrays, _ = fitted(leaves, np.zeros(width, np.float32) if directed else None, delta=0.0, confidence=0.95)
    return played, np.ones(OTHERS, bool), arrays


def compiled_ahead(game: Game, directed: bool, **static: Any) -> "Future[None]":
    """Compiles :func:`scored` in a thread, for blank arrays, as only their shapes matter.

    Args:
      game: whose calls are to be scored.
      directed: whether there will be a given direction.
      static: of :func:`scored`.
    """

    def compile() -> None:
        given = blank(game, directed, static["arrays_of"])
        scored.lower(*given, **static, mesh=game.mesh).compile()

    pool = ThreadPoolExecutor(1, "compiling")
    done = pool.submit(compile)
    pool.shutdown(wait=False)
    return done
