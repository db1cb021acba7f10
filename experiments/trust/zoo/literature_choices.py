"""Plants faults of the literature in coins and choices: wrong odds, a shuffle left out, noise fixed by the answer."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from dpaudit import Case, Claim
from dpaudit.auditing.attacks.distinguish import projection
from dpaudit.mechanisms import sampling
from experiments.trust.zoo.fault import Fault, event, whole_noise

CLAIM = Claim(1.0)
LIKELY = math.exp(CLAIM.epsilon) / (1 + math.exp(CLAIM.epsilon))  # of the truth, of two possible answers
CATEGORIES = 5
BITS = 8

CANDIDATES = 10
VOTES = jnp.zeros((4, CANDIDATES))  # a row of approvals for each voter
FOR_THE_FIRST = VOTES.at[1, 0].set(1.0)
FOR_THE_OTHERS = VOTES.at[1, 1:].set(1.0)

PEOPLE, LOCAL = 128, 2.0
SHUFFLED = Claim(0.61, 1e-3)  # of all reports in an unknown order: 0.600 by exact enumeration
ALL_NO = jnp.zeros(PEOPLE, jnp.int32)
FIRST_YES = ALL_NO.at[0].set(1)

TWO_COUNTS = Claim(2.0, neighbouring="add_remove")
CROWD = jnp.ones(8).at[0].set(0.0)  # record 0 is the one whom the second count leaves out
WITH_VICTIM = jnp.ones(8)


def one_category(key: jax.Array, x: jax.Array, *, truth: float) -> jax.Array:
    """Returns the true category with this probability, else one of the others."""
    coin_key, other_key = jax.random.split(key)
    other = (x + jax.random.randint(other_key, (), 1, CATEGORIES)) % CATEGORIES
    return jnp.where(sampling.bernoulli(coin_key, 1 - truth), other, x)


def unary(key: jax.Array, x: jax.Array, *, epsilon: float) -> jax.Array:
    """Returns a bit for every category, each told truly with odds e^epsilon; two inputs differ in two bits."""
    bits = jax.nn.one_hot(x, BITS, dtype=jnp.int32)
    return bits ^ sampling.bernoulli(key, 1 / (1 + math.exp(epsilon)), bits.shape)


def chosen(key: jax.Array, x: jax.Array, *, factor: float) -> jax.Array:
    """Returns a candidate with probability ~ e^(factor approvals); a voter changes every count by at most 1."""
    return jax.random.categorical(key, factor * jnp.sum(jnp.clip(x, 0.0, 1.0), axis=0))


def reports(key: jax.Array, x: jax.Array) -> jax.Array:
    """Everyone's own randomised answer, in the order of the people."""
    return x ^ sampling.bernoulli(key, 1 / (1 + math.exp(LOCAL)), x.shape)


def shuffled_reports(key: jax.Array, x: jax.Array) -> jax.Array:
    report_key, order_key = jax.random.split(key)
    return jax.random.permutation(order_key, reports(report_key, x))


def two_counts(x: jax.Array) -> jax.Array:
    """Of all, and of all but record 0."""
    x = jnp.clip(x, 0.0, 1.0)
    return jnp.stack([jnp.sum(x), jnp.sum(x[1:])])


def sticky(key: jax.Array, x: jax.Array) -> jax.Array:
    """Noise that is a function of a secret and the answer, so that asking again does not average it out."""
    counts = two_counts(x)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, counts.astype(jnp.int32))
    return counts + jax.vmap(whole_noise)(keys)


def fresh(key: jax.Array, x: jax.Array) -> jax.Array:
    return two_counts(x) + whole_noise(key, (2,))


FAULTS = (
    Fault(
        "randomised response of many with the odds of two",
        "Wang, Blocki, Li and Jha 2017: the truth has probability e^epsilon/(e^epsilon + k - 1), for k = 2 alone over "
        "e^epsilon + 1",
        Case(partial(one_category, truth=LIKELY), jnp.int32(0), jnp.int32(1), CLAIM),
        Case(partial(one_category, truth=math.e / (math.e + CATEGORIES - 1)), jnp.int32(0), jnp.int32(1), CLAIM),
        CLAIM.epsilon + math.log(CATEGORIES - 1),
        attacks=(projection, event("category 1", lambda release: release == 1)),
    ),
    Fault(
        "unary encoding whose bits each spend epsilon",
        "Erlingsson, Pihur and Korolova 2014 halve it; Samuel-Maddock/pure-LDP issue 11 (2023) on other odds of the "
        "same encoding, found by Arcolezi and Gambs 2023",
        Case(partial(unary, epsilon=CLAIM.epsilon), jnp.int32(0), jnp.int32(1), CLAIM),
        Case(partial(unary, epsilon=CLAIM.epsilon / 2), jnp.int32(0), jnp.int32(1), CLAIM),
        2 * CLAIM.epsilon,
        attacks=(projection, event("the second, not the first", lambda bits: (bits[0] == 0) & (bits[1] == 1))),
    ),
    Fault(
        "exponential mechanism without its factor of 2",
        "McSherry and Talwar 2007, Theorem 6: e^(epsilon q) is 2 epsilon Delta-private",
        Case(partial(chosen, factor=CLAIM.epsilon), FOR_THE_OTHERS, FOR_THE_FIRST, CLAIM),
        Case(partial(chosen, factor=CLAIM.epsilon / 2), FOR_THE_OTHERS, FOR_THE_FIRST, CLAIM),
        1 + math.log((1 + (CANDIDATES - 1) * math.e) / (math.e + CANDIDATES - 1)),
        attacks=(projection, event("the first", lambda release: release == 0)),
    ),
    Fault(
        "amplification by shuffling without a shuffle",
        "Cheu, Smith, Ullman, Zeber and Zhilyaev 2019 and Erlingsson et al. 2019 need reports in an unknown order",
        Case(reports, ALL_NO, FIRST_YES, SHUFFLED),
        Case(shuffled_reports, ALL_NO, FIRST_YES, SHUFFLED),
        math.log((1 - SHUFFLED.delta * (1 + math.exp(-LOCAL))) * math.exp(LOCAL)),
        attacks=(projection, event("the first says yes", lambda release: release[0] == 1)),
    ),
    Fault(
        "noise that is a function of the answer",
        "Gadotti, Houssiau, Rocher, Livshits and de Montjoye 2019, When the signal is in the noise: exploiting "
        "Diffix's sticky noise",
        Case(sticky, CROWD, WITH_VICTIM, TWO_COUNTS),
        Case(fresh, CROWD, WITH_VICTIM, TWO_COUNTS),
        math.inf,
        attacks=(projection, event("two answers that differ", lambda release: release[0] != release[1])),
    ),
)
