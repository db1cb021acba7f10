"""Runs LDP-SGD's trial without writing its release: inner products with a random direction drawn on the fly.

An observer of LDP-SGD sees a release z = +-n/|n| only through <z, g0> and <z, g1>, so a trial needs |n|^2 and <n, g>
of a normal vector n: a few sums over coordinates that exist for as long as they are added. Drawn as an array, n is
written to memory and read back several times on its way from random words to a release.

The words are those of :func:`dpaudit.mechanisms.sampling.normal` for the same Philox key, so a trial here equals the
trial of the shipped mechanism, up to rounding. It is not the shipped code: an audit that should find bugs in that code
plays the mechanism itself.

Coordinates lie in tiles of cipher blocks. A cell of the grid takes some trials and one tile. On a GPU it writes its
own part of each sum, and the parts are added outside; a TPU takes one cell after another, and adds each to the sums of
the cells before it, because parts of three numbers each would be padded to 128.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dpaudit import _validate
from dpaudit.kernels import philox
from dpaudit.mechanisms import ldp_sgd, sampling
from dpaudit.mechanisms.clipping import norm_and_direction

Cipher = Callable[[Sequence[jax.Array], Sequence[jax.Array]], philox.Words]
Products = Callable[[jax.Array, jax.Array], jax.Array]

WORDS = 4  # of a cipher block; three blocks make as many pairs of normals
LANES = 128  # blocks in a row of a tile
TRIALS = 32  # of a cell, which reads its tile once for all
TPU_ROWS = 8  # a vector register of the TPU is one tile
GPU_ROWS = 2  # two blocks, sixteen normals, for each thread of a warp group


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
    """Layout of d coordinates in rows of cipher blocks; padding has weight 0 in every sum."""

    half: int  # ceil(d / 2), the normal pairs; pair j is coordinates j and half + j
    numbers: jax.Array  # [rows, LANES] uint32, of the blocks
    weights: jax.Array  # [1 + k, 2 WORDS, rows, LANES]: 1 for |n|^2, then the directions; first, then second of a pair


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
    return lax.platform_dependent(
        *_checked(keys, directions), tpu=_on_tpu, cuda=_on_gpu, default=partial(_in_one_loop, chip=CPU)
    )


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


def cosines(
    keys: jax.Array,
    gradient: jax.Array,
    other: jax.Array,
    *,
    epsilon: Any,
    clip_norm: Any,
    products: Products = products,
) -> jax.Array:
    """Computes (<z, gradient>/|gradient|, <z, other>/|other|) of the release z of ``gradient`` for every key.

    Args:
      keys: Philox keys, [n]; each is what :func:`dpaudit.mechanisms.ldp_sgd.randomize` would be given.
      gradient: x, [d]; its world's.
      other: [d], of the other world.
      epsilon, clip_norm: of the mechanism.
      products: draws the directions; one of this file.

    Returns:
      [n, 2], float32; a zero vector has cosine 0 with everything.

    Source: paper 000, Algorithm 1 and Eq. (3).
    """
    _validate.positive(epsilon=epsilon)
    _validate.positive(clip_norm=clip_norm)
    coin_keys, sphere_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    norm, direction = norm_and_direction(gradient)
    units = jnp.stack([direction, norm_and_direction(other)[1]])
    turned = jax.vmap(lambda key: ldp_sgd.turns(key, norm, epsilon=epsilon, clip_norm=clip_norm))(coin_keys)
    squared, *inner = products(sphere_keys, units).T
    first = units[:, :1]  # of a vector without length, which stands for the first axis
    v = jnp.where(squared > 0, jnp.stack(inner) / jnp.sqrt(squared), first)
    return jnp.where((v[0] >= 0) ^ turned, v, -v).T


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


def _sums(key: Any, numbers: jax.Array, weights: Any, half: int, chip: Chip) -> list[jax.Array]:
    """Adds the terms of every sum over the eight normals of each block: 1 + k arrays like ``numbers``."""
    sums = [jnp.zeros(numbers.shape, jnp.float32) for _ in weights]
    for place, (high, low, angle) in enumerate(zip(*words(key, numbers, half, chip.cipher), strict=True)):
        pair = sampling.box_muller(high, low, angle, jnp.float32, chip.sqrt)
        for normal, side in zip(pair, (place, WORDS + place), strict=True):
            factors = [normal, *[np.float32(1)] * (len(sums) - 1)]
            sums = [s + w[side] * normal * f for s, w, f in zip(sums, weights, factors, strict=True)]
    return sums


def _coordinates(directions: jax.Array, tile: int) -> Coordinates:
    """Lays coordinates out in whole tiles of that many rows."""
    k, d = directions.shape
    half = -(-d // 2)
    rows = -(-half // (WORDS * LANES * tile)) * tile
    every = jnp.concatenate([jnp.ones((1, d)), directions])
    sides = jnp.pad(every, ((0, 0), (0, 2 * half - d))).reshape(1 + k, 2, half)
    padded = jnp.pad(sides, ((0, 0), (0, 0), (0, rows * LANES * WORDS - half)))
    weights = padded.reshape(1 + k, 2, rows, LANES, WORDS).transpose(0, 1, 4, 2, 3)
    numbers = jnp.arange(rows * LANES, dtype=jnp.uint32).reshape(rows, LANES)
    return Coordinates(half, numbers, weights.reshape(1 + k, 2 * WORDS, rows, LANES))


@partial(jax.jit, static_argnames="chip")
def _in_one_loop(keys: jax.Array, directions: jax.Array, *, chip: Chip) -> jax.Array:
    half, numbers, weights = _coordinates(directions, 1)

    def one(key: jax.Array) -> jax.Array:
        sums = _sums(key, numbers, weights, half, chip)

        def add(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> list[jax.Array]:
            return [x + y for x, y in zip(a, b, strict=True)]

        return jnp.stack(lax.reduce(sums, [np.float32(0)] * len(sums), add, (0, 1)))

    return jax.vmap(one)(keys)


@partial(jax.jit, static_argnames="interpret")
def _on_tpu(keys: jax.Array, directions: jax.Array, *, interpret: bool = False) -> jax.Array:
    half, numbers, weights = _coordinates(directions, TPU_ROWS)
    keys, trials, n = _whole_cells(keys)
    sums, sides, rows, _ = weights.shape

    def cell(keys: Any, numbers: Any, weights: Any, out: Any) -> None:
        tile = [[weights[m, side] for side in range(sides)] for m in range(sums)]
        first = pl.program_id(1) == 0

        def trial(t: Any, _: None) -> None:
            key = [keys[t, word] for word in range(4)]
            for m, added in enumerate(_sums(key, numbers[...], tile, half, TPU)):
                out[t, m] = jnp.where(first, 0, out[t, m]) + jnp.sum(added)

        lax.fori_loop(0, trials, trial, None)

    return pl.pallas_call(
        cell,
        grid=(len(keys) // trials, rows // TPU_ROWS),
        in_specs=[
            pl.BlockSpec((trials, 4), lambda i, j: (i, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec((TPU_ROWS, LANES), lambda i, j: (j, 0)),
            pl.BlockSpec((sums, sides, TPU_ROWS, LANES), lambda i, j: (0, 0, j, 0)),
        ],
        out_specs=pl.BlockSpec((trials, sums), lambda i, j: (i, 0), memory_space=pltpu.SMEM),
        out_shape=jax.ShapeDtypeStruct((len(keys), sums), jnp.float32),
        interpret=interpret,
    )(keys, numbers, weights)[:n]


@partial(jax.jit, static_argnames="interpret")
def _on_gpu(keys: jax.Array, directions: jax.Array, *, interpret: Any = False) -> jax.Array:
    half, numbers, weights = _coordinates(directions, GPU_ROWS)
    keys, trials, n = _whole_cells(keys)
    sums, sides, rows, _ = weights.shape

    def cell(keys: Any, numbers: Any, weights: Any, out: Any) -> None:
        i, j = lax.axis_index("trials"), lax.axis_index("tiles")
        own = pl.ds(j * GPU_ROWS, GPU_ROWS)
        tile = [[weights[m, side, own] for side in range(sides)] for m in range(sums)]
        of_tile = numbers[own]

        def trial(t: Any, _: None) -> None:
            key = [keys[i * trials + t, word] for word in range(4)]
            for m, added in enumerate(_sums(key, of_tile, tile, half, GPU)):
                out[j, i * trials + t, m] = jnp.sum(added)

        lax.fori_loop(0, trials, trial, None)

    parts = plgpu.kernel(
        cell,
        out_type=jax.ShapeDtypeStruct((rows // GPU_ROWS, len(keys), sums), jnp.float32),
        grid=(len(keys) // trials, rows // GPU_ROWS),
        grid_names=("trials", "tiles"),
        interpret=interpret,
    )(keys, numbers, weights)
    return parts.sum(axis=0)[:n]


def _whole_cells(keys: jax.Array) -> tuple[jax.Array, int, int]:
    """Pads keys to whole cells; returns them, the trials of a cell, and the number of keys."""
    n = len(keys)
    trials = min(TRIALS, n)
    return jnp.pad(keys, ((0, -n % trials), (0, 0))), trials, n


def _checked(keys: jax.Array, directions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the words of the keys, [n, 4], and the directions in float32, checked."""
    philox_keys = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) and jax.random.key_impl(keys) == philox.IMPL
    if not philox_keys or keys.ndim != 1 or not keys.size:
        raise _validate.expected("keys", "Philox keys of shape [n], n >= 1", f"{keys.dtype}{list(keys.shape)}")
    shape = jnp.shape(directions)
    if len(shape) != 2 or not math.prod(shape):
        raise _validate.expected("directions", "an array of shape [k, d], k, d >= 1", f"shape {list(shape)}")
    return jax.random.key_data(keys), jnp.asarray(directions, jnp.float32)
