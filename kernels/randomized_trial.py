"""Runs LDP-SGD's trial without writing its release: inner products with a random direction drawn on the fly.

An observer of LDP-SGD sees a release z = +-n/|n| only through <z, g0> and <z, g1>, so a trial needs |n|^2 and <n, g>
of a normal vector n: a few sums over coordinates that exist for as long as they are added. Drawn as an array, n is
written to memory and read back several times on its way from random words to a release.

The words are those of :func:`dpaudit.mechanisms.sampling.normal` for the same Philox key, so a trial here equals the
trial of the shipped mechanism, up to rounding. It is not the shipped code: an audit that should find bugs in that code
plays the mechanism itself.

Each lane of a vector, or each thread, is a trial, and all take one cipher block after another, whose weights are the
same for all of them. So no sum crosses lanes, no array has a short last axis that a TPU would pad, and where a row of
words does not begin with a block, the words that are left over wait for the next block: three ciphers for four pairs
of normals, whatever the dimension. A cell of the grid takes one tile of trials through one chunk of blocks. A TPU
takes one cell after another and adds up their sums in place; a GPU writes the sums of each, which are added outside.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dpaudit import _platform, _validate
from dpaudit.kernels import philox
from dpaudit.mechanisms import ldp_sgd, sampling
from dpaudit.mechanisms.clipping import norm_and_direction

Cipher = Callable[[Sequence[jax.Array], Sequence[jax.Array]], philox.Words]
Products = Callable[[jax.Array, jax.Array], jax.Array]

WORDS = 4  # of a cipher block; three blocks make as many pairs of normals
LANES = 128  # trials in a row of a tile
TPU_ROWS = 8  # a tile is one vector register
GPU_ROWS = 1  # a tile is one trial for each thread of a warp group
CHUNK = 256  # cipher blocks, 2,048 normals; short enough to be added one by one without loss


class Chip(NamedTuple):
    """Arithmetic of a chip: neither the law of the result nor any word depends on it."""

    cipher: Cipher = philox.block
    sqrt: Callable[[jax.Array], jax.Array] = jnp.sqrt


def _sqrt_by_rsqrt(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.maximum(x, jnp.finfo(x.dtype).tiny))


CPU = Chip()
TPU = Chip(cipher=partial(philox.block, multiply=philox.by_halves))
GPU = Chip(sqrt=_sqrt_by_rsqrt)  # Mosaic GPU has no square root


class Coordinates(NamedTuple):
    """Coordinates by normal pairs; what pads them to whole blocks has weight 0 in every sum."""

    half: int  # ceil(d / 2), the normal pairs; pair j is coordinates j and half + j
    chunk: int  # blocks that are added one by one
    weights: jax.Array  # [1 + k, 2, pairs]: 1 for |n|^2, then the directions; of the first and the second of each pair


def products(keys: jax.Array, directions: jax.Array) -> jax.Array:
    """Computes |n|^2 and <n, u_j> for the normal vector n of every key, on the chip at hand.

    Args:
      keys: Philox keys, [n].
      directions: u, [k, d], float32.

    Returns:
      [n, 1 + k]: for n = ``sampling.normal(key, (d,))``, |n|^2 and then <n, u_1>, ..., <n, u_k>.

    Raises:
      InputError: keys of another kind; directions not of that shape.
    """
    return on(_platform.current())(keys, directions)


def on(platform: str) -> Products:
    """Returns the form of :func:`products` for a kind of device: "cpu", "gpu" or "tpu"."""
    return {"tpu": products_tpu, "gpu": products_gpu}.get(platform, products_reference)


def products_reference(keys: jax.Array, directions: jax.Array, *, chip: Chip = CPU) -> jax.Array:
    """Computes :func:`products` in plain JAX: one loop over tiles that adds as it draws, if the compiler fuses it.

    Args:
      keys, directions: as for :func:`products`.
      chip: its arithmetic; a wrong one is for tests of the tests.
    """
    return _in_one_loop(*_checked(keys, directions), chip=chip)


def products_tpu(keys: jax.Array, directions: jax.Array, *, interpret: bool = False) -> jax.Array:
    """Computes :func:`products` by Mosaic TPU, or interpreted on any machine."""
    return _on_tpu(*_checked(keys, directions), interpret=interpret)


def products_gpu(keys: jax.Array, directions: jax.Array, *, interpret: Any = False) -> jax.Array:
    """Computes :func:`products` by Mosaic GPU, which needs Hopper or newer, or with its interpreter's parameters."""
    return _on_gpu(*_checked(keys, directions), interpret=interpret)


@cache
def together(products: Products) -> Products:
    """Returns the same function, which under ``jax.vmap`` draws for all trials in one call instead of one call each.

    Args:
      products: one of this file; its directions have to be the same for all trials.
    """

    @jax.custom_batching.custom_vmap
    def of_words(keys: jax.Array, directions: jax.Array) -> jax.Array:
        return products(jax.random.wrap_key_data(keys, impl=philox.IMPL), directions)

    @of_words.def_vmap
    def of_trials(size: int, batched: Any, keys: jax.Array, directions: jax.Array) -> tuple[jax.Array, bool]:
        if batched[1]:
            raise _validate.expected("directions", "the same ones in all trials", "others in each trial")
        found = of_words(keys.reshape(-1, WORDS), directions)
        return found.reshape(size, -1, found.shape[1]), True

    return lambda keys, directions: of_words(*_checked(keys, directions))


def cosines(
    keys: jax.Array,
    pair: jax.Array,
    world: Any,
    *,
    epsilon: Any,
    clip_norm: Any,
    products: Products = products,
) -> jax.Array:
    """Computes (<z, g0>/|g0|, <z, g1>/|g1|) of the release z of g0 or g1 for every key.

    Args:
      keys: Philox keys, [n]; each is what :func:`dpaudit.mechanisms.ldp_sgd.randomize` would be given.
      pair: g0 and g1, [2, d].
      world: 0 or 1, whose gradient is released, a scalar or [n].
      epsilon: of the mechanism, a scalar; within a compiled function also [n].
      clip_norm: of the mechanism.
      products: draws the directions; one of this file.

    Returns:
      [n, 2], float32; a zero vector has cosine 0 with everything.

    Raises:
      InputError: a pair of another shape; a world but 0 and 1; epsilon or clip_norm not positive; other keys.

    Source: paper 000, Algorithm 1 and Eq. (3).
    """
    _validate.positive(epsilon=epsilon)
    _validate.positive(clip_norm=clip_norm)
    if jnp.ndim(pair) != 2 or len(pair) != 2:
        raise _validate.expected("pair", "two gradients, [2, d]", f"shape {list(jnp.shape(pair))}")
    if not isinstance(world, Tracer) and not np.isin(world, (0, 1)).all():
        raise _validate.expected("world", "0 or 1", world)
    world = jnp.broadcast_to(world, keys.shape)
    coin_keys, sphere_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    norms, units = jax.vmap(norm_and_direction)(pair)
    units = units.astype(jnp.float32)
    turned = jax.vmap(lambda key, norm, epsilon: ldp_sgd.turns(key, norm, epsilon=epsilon, clip_norm=clip_norm))(
        coin_keys, norms[world], jnp.broadcast_to(epsilon, keys.shape)
    )
    squared, *inner = products(sphere_keys, units).T
    first = units[:, :1]  # of a vector without length, which stands for the first axis
    v = jnp.where(squared > 0, jnp.stack(inner) / jnp.sqrt(squared), first)
    own = jnp.where(world == 0, v[0], v[1])
    return jnp.where((own >= 0) ^ turned, v, -v).T


def words(key: Any, numbers: jax.Array, half: int, cipher: Cipher = philox.block) -> list[Sequence[jax.Array]]:
    """Returns the three words behind each of four normal pairs for every block number b: pairs 4b, ..., 4b + 3.

    ``jax.random.bits(key, (3, half))`` in blocks: row m begins with word m half, which is no block's first unless 4
    divides it; then the words of two blocks are shifted.

    Args:
      key: the four words of a Philox key, scalars.
      numbers: b, uint32, any shape.
      half: of :class:`Coordinates`.
      cipher: :func:`dpaudit.kernels.philox.block`.

    Returns:
      high, low and angle of ``sampling.box_muller``, each four arrays like ``numbers``.
    """
    k0, k1, c2, c3 = key
    zero = jnp.zeros_like(numbers)

    def blocks(first: int) -> philox.Words:
        return cipher((k0, k1), (numbers + np.uint32(first), zero, zero + c2, zero + c3))

    def row(start: int) -> Sequence[jax.Array]:
        first, shift = divmod(start, WORDS)
        both = blocks(first) if shift == 0 else blocks(first) + blocks(first + 1)
        return both[shift : shift + WORDS]

    return [row(m * half) for m in range(3)]


def _terms(words: Sequence[Sequence[jax.Array]], weights: Any, chip: Chip) -> list[jax.Array]:
    """Returns the terms of every sum, 1 + k, over the eight normals of a block.

    Args:
      words: of :func:`words`.
      weights: [1 + k][2 WORDS], each a scalar or like a word.
      chip: its arithmetic.
    """
    high, low, angle = words
    pairs = [sampling.box_muller(*of, jnp.float32, chip.sqrt) for of in zip(high, low, angle, strict=True)]
    normals = [first for first, _ in pairs] + [second for _, second in pairs]

    def weighted(own: Any, terms: Sequence[jax.Array]) -> jax.Array:
        return reduce(jnp.add, [w * term for w, term in zip(own, terms, strict=True)])

    squares = [normal * normal for normal in normals]
    return [weighted(weights[0], squares), *(weighted(own, normals) for own in weights[1:])]


def _of_blocks(key: Sequence[jax.Array], first: Any, count: int, weight: Any, half: int, sums: int, chip: Chip) -> Any:
    """Adds up the terms of consecutive blocks for a tile of trials.

    Args:
      key: the four words of the trials' keys, arrays of one shape.
      first: number of the first block.
      count: of blocks.
      weight: ``weight(m, side, i)``, a scalar, of block ``first + i``.
      half: of :class:`Coordinates`.
      sums: 1 + k.
      chip: its arithmetic.

    Returns:
      ``sums`` arrays like ``key``.
    """
    k0, k1, c2, c3 = key
    zero = k0 ^ k0
    rows = [divmod(m * half, WORDS) for m in range(3)]  # each row's first block, and its first word in that block

    def block(number: Any) -> philox.Words:
        return chip.cipher((k0, k1), (zero + jnp.uint32(number), zero, c2, c3))

    def step(i: Any, carry: Any) -> Any:
        left, added = carry
        drawn = [block(first + i + start + (shift > 0)) for start, shift in rows]
        both = [(*before, *now)[:WORDS] for before, now in zip(left, drawn, strict=True)]
        weights = [[weight(m, side, i) for side in range(2 * WORDS)] for m in range(sums)]
        added = [total + term for total, term in zip(added, _terms(both, weights, chip), strict=True)]
        return [now[shift:] if shift else () for now, (_, shift) in zip(drawn, rows, strict=True)], added

    left = [block(first + start)[shift:] if shift else () for start, shift in rows]
    return lax.fori_loop(0, count, step, (left, [zero.astype(jnp.float32)] * sums))[1]


def _coordinates(directions: jax.Array) -> Coordinates:
    """Pairs coordinates, and pads the pairs to whole blocks and chunks."""
    d = directions.shape[1]
    half = -(-d // 2)
    chunk = min(CHUNK, -(-half // WORDS))
    every = jnp.concatenate([jnp.ones((1, d), directions.dtype), directions])
    sides = jnp.pad(every, ((0, 0), (0, 2 * half - d))).reshape(len(every), 2, half)
    return Coordinates(half, chunk, jnp.pad(sides, ((0, 0), (0, 0), (0, -half % (WORDS * chunk)))))


@partial(jax.jit, static_argnames="chip")
def _in_one_loop(keys: jax.Array, directions: jax.Array, *, chip: Chip) -> jax.Array:
    half, _, weights = _coordinates(directions)
    numbers = jnp.arange(weights.shape[-1] // WORDS, dtype=jnp.uint32)
    of_block = jnp.moveaxis(weights.reshape(*weights.shape[:2], -1, WORDS), 3, 2).reshape(len(weights), 2 * WORDS, -1)

    def one(key: jax.Array) -> jax.Array:
        sums = _terms(words(key, numbers, half, chip.cipher), of_block, chip)

        def add(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> list[jax.Array]:
            return [x + y for x, y in zip(a, b, strict=True)]

        return jnp.stack(lax.reduce(sums, [np.float32(0)] * len(sums), add, (0,)))

    return jax.vmap(one)(keys)


@partial(jax.jit, static_argnames="interpret")
def _on_tpu(keys: jax.Array, directions: jax.Array, *, interpret: bool = False) -> jax.Array:
    half, blocks, weights = _coordinates(directions)
    tiles, sums = _tiles(keys, TPU_ROWS), len(weights)
    rows, chunks = tiles.shape[1], weights.shape[2] // (WORDS * blocks)

    def cell(keys: Any, weights: Any, out: Any) -> None:
        chunk = pl.program_id(1)
        key = [keys[word] for word in range(WORDS)]

        def weight(m: int, side: int, i: Any) -> Any:
            return weights[2 * m + side // WORDS, WORDS * i + side % WORDS]

        for m, added in enumerate(_of_blocks(key, chunk * blocks, blocks, weight, half, sums, TPU)):
            out[m] = jnp.where(chunk == 0, 0, out[m]) + added

    found = pl.pallas_call(
        cell,
        grid=(rows // TPU_ROWS, chunks),
        in_specs=[
            pl.BlockSpec((WORDS, TPU_ROWS, LANES), lambda i, j: (0, i, 0)),
            pl.BlockSpec((2 * sums, WORDS * blocks), lambda i, j: (0, j), memory_space=pltpu.SMEM),
        ],
        out_specs=pl.BlockSpec((sums, TPU_ROWS, LANES), lambda i, j: (0, i, 0)),
        out_shape=jax.ShapeDtypeStruct((sums, rows, LANES), jnp.float32),
        interpret=interpret,
    )(tiles, weights.reshape(2 * sums, -1))
    return _untiled(found, len(keys))


@partial(jax.jit, static_argnames="interpret")
def _on_gpu(keys: jax.Array, directions: jax.Array, *, interpret: Any = False) -> jax.Array:
    half, blocks, weights = _coordinates(directions)
    tiles, sums = _tiles(keys, GPU_ROWS), len(weights)
    rows, chunks = tiles.shape[1], weights.shape[2] // (WORDS * blocks)

    def cell(keys: Any, weights: Any, out: Any) -> None:
        tile, chunk = lax.axis_index("tiles"), lax.axis_index("chunks")
        own = pl.ds(tile * GPU_ROWS, GPU_ROWS)
        key = [keys[word, own] for word in range(WORDS)]

        def weight(m: int, side: int, i: Any) -> Any:
            return weights[m, side // WORDS, WORDS * (chunk * blocks + i) + side % WORDS]

        for m, added in enumerate(_of_blocks(key, chunk * blocks, blocks, weight, half, sums, GPU)):
            out[chunk, m, own] = added

    parts = plgpu.kernel(
        cell,
        out_type=jax.ShapeDtypeStruct((chunks, sums, rows, LANES), jnp.float32),
        grid=(rows // GPU_ROWS, chunks),
        grid_names=("tiles", "chunks"),
        interpret=interpret,
    )(tiles, weights)
    return _untiled(parts.sum(axis=0), len(keys))


def _tiles(keys: jax.Array, rows: int) -> jax.Array:
    """Returns the words of the keys, [n, WORDS], in whole tiles of trials, [WORDS, a multiple of ``rows``, LANES]."""
    return jnp.pad(keys, ((0, -len(keys) % (rows * LANES)), (0, 0))).T.reshape(WORDS, -1, LANES)


def _untiled(sums: jax.Array, n: int) -> jax.Array:
    """Returns the sums of the first n trials, [n, 1 + k]."""
    return sums.reshape(len(sums), -1)[:, :n].T


def _checked(keys: jax.Array, directions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the words of the keys, [n, 4], and the directions in float32, checked."""
    philox_keys = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) and jax.random.key_impl(keys) == philox.IMPL
    if not philox_keys or keys.ndim != 1 or not keys.size:
        raise _validate.expected("keys", "Philox keys of shape [n], n >= 1", f"{keys.dtype}{list(keys.shape)}")
    shape = jnp.shape(directions)
    if len(shape) != 2 or not math.prod(shape):
        raise _validate.expected("directions", "an array of shape [k, d], k, d >= 1", f"shape {list(shape)}")
    return jax.random.key_data(keys), jnp.asarray(directions, jnp.float32)
