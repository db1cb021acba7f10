"""Plants faults of selection: sparse vector techniques and report-noisy-max that spend more than they claim.

Of the six sparse vector algorithms that Lyu, Su and Li 2017 compare, 1 and 2 are private (twins here) and 3 to 6 are
not. Two more mistakes make six: noise for monotone queries on others, and answers beyond the cutoff passed on raw.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import Distinguisher, projection
from experiments.trust import sniper_mechanisms as sniper
from experiments.trust.zoo.fault import Fault, event

CLAIM = Claim(1.0)
LYU = "Lyu, Su and Li 2017, Understanding the Sparse Vector Technique, Algorithm"
THRESHOLD = 0.5


def moved(down: int, up: int) -> tuple[jax.Array, jax.Array]:
    """Two neighbours: the first queries go down by 1 and the others go up by 1."""
    after = jnp.arange(down + up) >= down
    return 1.0 - after, 1.0 * after


def below_then_above(down: int) -> Distinguisher:
    """FALSE for all that went down and TRUE for all that went up: each of them costs."""
    return event("FALSE ... TRUE", lambda bits: jnp.all(bits[:down] == 0) & jnp.all(bits[down:] == 1))


def for_monotone(key: jax.Array, x: jax.Array, *, epsilon: float) -> jax.Array:
    """Query noise Lap(2/epsilon), stops at the first TRUE: enough where all queries move the same way."""
    above = sniper.svt6(key, x, epsilon=epsilon, threshold=THRESHOLD)
    return jnp.where(jnp.cumsum(above) - above >= 1, sniper.ABORTED, above)


def rest_is_raw(key: jax.Array, x: jax.Array, *, epsilon: float) -> jax.Array:
    """Returns the first two answers above the threshold get noise, and those after them are not withheld."""
    answers = sniper.numerical_svt(key, x, epsilon=epsilon, threshold=THRESHOLD)
    return jnp.where(answers == sniper.NO_VALUE, x, answers)


SVT1 = partial(sniper.svt1, epsilon=CLAIM.epsilon, threshold=THRESHOLD)
SVT3_PAIR = (jnp.array([1.0, 1.0, 1.0, 1.0, 0.0]), jnp.zeros(5))
RAW_PAIR = (jnp.array([4.0, 4.0, 4.0, 4.0]), jnp.array([4.0, 4.0, 4.0, 5.0]))
MAX_PAIR = moved(1, 9)


def small_answer_after_false(release: jax.Array) -> jax.Array:
    """Returns the answer bounds the threshold from above, and the threshold all that were FALSE."""
    is_false = (release == sniper.NO_VALUE) | (release == 0.0)  # as svt3 and as numerical_svt write it
    return jnp.all(is_false[:4]) & ~is_false[4] & (release[4] < 1.5)


def planted(
    name: str,
    source: str,
    fault: partial,
    twin: partial,
    pair: tuple[jax.Array, jax.Array],
    true_epsilon: float,
    attack: Distinguisher,
) -> Fault:
    """Both on one pair and with one claim."""
    return Fault(name, source, Case(fault, *pair, CLAIM), Case(twin, *pair, CLAIM), true_epsilon, (projection, attack))


FAULTS = (
    planted(
        "sparse vector that releases its noisy answers",
        f"{LYU} 3",
        partial(sniper.svt3, epsilon=CLAIM.epsilon, threshold=0.0),
        partial(sniper.numerical_svt, epsilon=CLAIM.epsilon, cutoff=1, threshold=0.0),
        SVT3_PAIR,
        math.inf,
        event("FALSE ..., answer < 1.5", small_answer_after_false),
    ),
    planted(
        "sparse vector whose noise ignores the cutoff",
        f"{LYU} 4: (1 + 6c)/4 epsilon",
        partial(sniper.svt4, epsilon=CLAIM.epsilon, cutoff=2, threshold=THRESHOLD),
        partial(sniper.svt2, epsilon=CLAIM.epsilon, cutoff=2, threshold=THRESHOLD),
        moved(2, 2),
        3.25,
        below_then_above(2),
    ),
    planted(
        "sparse vector without query noise",
        f"{LYU} 5",
        partial(sniper.svt5, epsilon=CLAIM.epsilon, threshold=THRESHOLD),
        SVT1,
        moved(1, 1),
        math.inf,
        below_then_above(1),
    ),
    planted(
        "sparse vector that never stops",
        f"{LYU} 6",
        partial(sniper.svt6, epsilon=CLAIM.epsilon, threshold=THRESHOLD),
        partial(sniper.svt2, epsilon=CLAIM.epsilon, cutoff=4, threshold=THRESHOLD),
        moved(4, 4),
        math.inf,
        below_then_above(4),
    ),
    planted(
        "sparse vector with noise for monotone queries",
        f"{LYU} 7 halves its query noise for monotone queries alone; on others the loss tends to 3/2 epsilon",
        partial(for_monotone, epsilon=CLAIM.epsilon),
        SVT1,
        moved(4, 1),
        1.5,
        below_then_above(4),
    ),
    planted(
        "sparse vector that passes the rest on raw",
        "NVIDIA/NVFlare issue 343",
        partial(rest_is_raw, epsilon=CLAIM.epsilon),
        partial(sniper.numerical_svt, epsilon=CLAIM.epsilon, threshold=THRESHOLD),
        RAW_PAIR,
        math.inf,
        event("last answer is 5", lambda release: release[-1] == 5.0),
    ),
    planted(
        "report noisy max with its value",
        "Ding et al. 2018, Detecting Violations of Differential Privacy, Algorithm 7: n epsilon / 2",
        partial(sniper.report_noisy_max3, epsilon=CLAIM.epsilon),
        partial(sniper.report_noisy_max1, epsilon=CLAIM.epsilon),
        MAX_PAIR,
        5.0,
        event("not below 2", lambda release: release > 2.0),
    ),
)
