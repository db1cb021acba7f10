"""Defines SPGC as it should be and broken, with the attack that shows it: cases for ``dpaudit.audit``.

One record is there or not, at the paper's delta; gradients are in units. One of the variants is broken and yet not
found out by everybody: with one server's bits fixed to zero, the noise is as fair as ever to all but the other server.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import Distinguisher, learned, projection
from dpaudit.secure.noise import gaussian, lookup
from dpaudit.secure.noise.binomial import binomial
from dpaudit.secure.protocol.fixed_point import Scale
from experiments.paper001.views import Aggregation, aggregation, noise_of, smod, spgc, transcript, words
from experiments.trust.zoo.fault import event

DELTA = 1e-3
CLAIM = Claim(0.5, DELTA, "add_remove")  # of the paper's rule, which spends 0.28 here
AGREED = aggregation(gaussian.classical(epsilon=CLAIM.epsilon, delta=DELTA))
RING = AGREED.scale.ring_bits
RECORD = jnp.zeros(1, jnp.int32), jnp.full(1, AGREED.scale.levels, jnp.int32)

FINE_CLAIM = Claim(2.0, DELTA, "add_remove")
COARSE = aggregation(
    gaussian.analytic(epsilon=FINE_CLAIM.epsilon, delta=DELTA, neighbouring="add_remove"), examples=3_000, ring_bits=17
)  # the paper's ring and its batch of MNIST
WEIGHTS = 21_258  # of its network


class Variant(NamedTuple):
    """One way to run the protocol."""

    fault: str  # what is wrong, the same words for the twin that does it right
    broken: bool  # whether it is the fault or the twin
    seen_by: str  # the adversary
    case: Case  # with the promise that the twin keeps
    attack: Distinguisher  # the same for both
    trials: int  # in all


def two_steps(key: jax.Array, x: jax.Array, *, reuse: bool) -> jax.Array:
    """Two releases, [2, d]; the record is in the first one's batch alone."""
    keys = jax.random.split(key, 2)
    keys = (keys[0], keys[0]) if reuse else keys
    return jnp.stack([spgc(AGREED, 1)(own, total) for own, total in zip(keys, (x, 0 * x), strict=True)])


def one_server_s_bits(key: jax.Array, x: jax.Array, *, fixed: bool, inside: bool) -> jax.Array:
    """Returns the release where H1's bits are all zero, or not; for H2 (``inside``), less the noise that its own bits
    make."""
    first, second = (words(own, AGREED.noise, x.shape) for own in jax.random.split(key))
    released = x + noise_of(AGREED.noise, second if fixed else first ^ second)
    return smod(released - noise_of(AGREED.noise, second) if inside else released, RING)


TABLE_SCALE = Scale(1.0, ((1 << 16) - 1) // 30, RING)  # the paper's unit where m = 30, and room for the noise
TABLE = lookup.table(TABLE_SCALE.levels * gaussian.classical(epsilon=CLAIM.epsilon, delta=DELTA))
WIDER = Aggregation(TABLE_SCALE, binomial(step_bits=12), AGREED.noise_multiplier)  # than the table, in units
NUDGE = jnp.zeros(182, jnp.int32), jnp.ones(182, jnp.int32)  # 13.5 units long, where 2,184 are a clip norm


def from_table(key: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the sum with noise from the paper's table."""
    return x + jnp.asarray(TABLE, jnp.int32)[jax.random.bits(key, x.shape, jnp.uint16)]


def impossible(released: jax.Array) -> jax.Array:
    """Tells whether a coordinate is none of the table's values, as it must be without the record."""
    table = jnp.asarray(np.unique(TABLE), jnp.int32)
    return (table[jnp.searchsorted(table, released)] != released).any()


def of_real(key: jax.Array, x: jax.Array, *, quantised: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Returns the release of gradients in fractions of units."""
    return spgc(COARSE, 1)(key, quantised(x).astype(jnp.int32))


def shortened(x: jax.Array) -> jax.Array:
    """Clipped: L2 norm at most Q units."""
    return x * jnp.minimum(1.0, COARSE.scale.levels / jnp.linalg.norm(x))


def clipped_first(x: jax.Array) -> jax.Array:
    """As :mod:`dpaudit.secure.protocol.fixed_point`: clipped, then toward zero."""
    return jnp.trunc(shortened(x))


def quantised_first(x: jax.Array) -> jax.Array:
    """Whole numbers are clipped and made whole again: by rounding, which may double their length."""
    return jnp.rint(shortened(jnp.rint(x)))


NEARLY = 0.5 - COARSE.scale.levels / WEIGHTS**0.5 / 2  # each coordinate of the other records' sum, known


def sum_rounded(x: jax.Array) -> jax.Array:
    """As Algorithm 1, line 6: what becomes whole numbers is the owner's sum."""
    return jnp.rint(NEARLY + shortened(x))


LONG_SIZE = (2 * COARSE.scale.levels) ** 2 - 1
LONG = jnp.zeros(LONG_SIZE), jnp.full(LONG_SIZE, 1_000.0)  # clipped, every coordinate is just over half a unit
EVEN = jnp.zeros(WEIGHTS), jnp.ones(WEIGHTS)  # clipped, a tenth of a unit


def pair(
    fault: str,
    seen_by: str,
    sound: Callable[..., Any],
    broken: Callable[..., Any],
    inputs: tuple[jax.Array, jax.Array],
    attack: Distinguisher,
    *,
    trials: int,
    claim: Claim = CLAIM,
) -> tuple[Variant, ...]:
    """Returns the protocol without the fault, and with it."""
    return tuple(
        Variant(fault, wrong, seen_by, Case(mechanism, *inputs, claim), attack, trials)
        for wrong, mechanism in ((False, sound), (True, broken))
    )


VARIANTS = (
    *pair(
        "noise seed used in two steps",
        "anyone",
        partial(two_steps, reuse=False),
        partial(two_steps, reuse=True),
        RECORD,
        event("difference of the two", lambda z: smod(z[0] - z[1], RING)[0] == RECORD[1][0]),
        trials=20_000,
    ),
    *pair(
        "H1's bits are all zero",
        "H2",
        partial(one_server_s_bits, fixed=False, inside=True),
        partial(one_server_s_bits, fixed=True, inside=True),
        RECORD,
        event("less own noise", lambda z: z[0] == RECORD[1][0]),
        trials=20_000,
    ),
    *pair(
        "H1's bits are all zero",
        "anyone else",
        partial(one_server_s_bits, fixed=False, inside=False),
        partial(one_server_s_bits, fixed=True, inside=False),
        RECORD,
        projection,
        trials=400_000,
    ),
    *pair(
        "noise from the paper's table",
        "anyone",
        spgc(WIDER, 1),
        from_table,
        NUDGE,
        event("a value that is not in the table", impossible),
        trials=20_000,
    ),
    *pair(
        "quantised before clipping",
        "anyone",
        partial(of_real, quantised=clipped_first),
        partial(of_real, quantised=quantised_first),
        LONG,
        projection,
        trials=20_000,
        claim=FINE_CLAIM,
    ),
    *pair(
        "the owner's sum is rounded",
        "anyone",
        partial(of_real, quantised=clipped_first),
        partial(of_real, quantised=sum_rounded),
        EVEN,
        projection,
        trials=2_000,
        claim=FINE_CLAIM,
    ),
    *pair(
        "owner's mask of 16 bits, not 25",
        "H1",
        transcript(AGREED, 0),
        transcript(AGREED, 0, mask_bits=16),
        RECORD,
        learned,
        trials=20_000,
    ),
    Variant("none", False, "H2", Case(transcript(AGREED, 1), *RECORD, CLAIM), learned, 20_000),
)
