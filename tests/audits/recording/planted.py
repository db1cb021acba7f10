"""Mechanisms with a planted fault, each of a kind that was published, and the same one mended.

The legacy generator is among what is recorded.
"""

# ruff: noqa: NPY002

import math
import random
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from scipy import stats

from dpaudit import Claim


class Planted(NamedTuple):
    """A fault, the kind under which it is found, and its mended twin."""

    kind: str
    faulty: Callable[..., Any]
    mended: Callable[..., Any]
    x0: Any
    x1: Any
    claim: Claim


ROWS = np.array([0.2, 0.7, 0.4, 0.9]), np.array([0.2, 0.7, 0.4, 0.1])
OUTLIER = np.array([0.2, 0.7, 0.4, 0.9]), np.array([0.2, 0.7, 0.4, 50.0])
FEWER = np.array([0.2, 0.7, 0.4, 0.9]), np.array([0.2, 0.7, 0.4])
LABELS = np.array([0, 1, 0, 2]), np.array([0, 1, 0])
PURE, APPROXIMATE = Claim(1.0), Claim(1.0, 1e-5)
WHOLE = 1 / 1.0  # the scale of Laplace noise for a sensitivity of 1 at epsilon 1


def mean_of_clipped(rng, x):
    return np.clip(x, 0, 1).sum() + rng.laplace(0, WHOLE)


# 1. a clip left out
def without_clip(rng, x):
    np.clip(x, 0, 1)  # the result is dropped
    return x.sum() + rng.laplace(0, WHOLE)


# 2. a mean of n - 1 rows for one of n
def mean_scale_of_more_rows(rng, x):
    return np.clip(x, 0, 1).sum() / (len(x) - 1) + rng.laplace(0, 1 / len(x))


def mean_scale(rng, x):
    return np.clip(x, 0, 1).sum() / len(x) + rng.laplace(0, 1 / len(x))


# 3. one coordinate without noise (diffprivlib's issue 105)
def last_coordinate_bare(rng, x):
    released = np.clip(x, 0, 1) + rng.laplace(0, WHOLE, len(x))
    released[-1] = x[-1]
    return released


def every_coordinate(rng, x):
    released = np.clip(x, 0, 1) + rng.laplace(0, WHOLE, len(x))
    released[-1] = released[-1] / 2
    return released


# 4. one draw for two values
def one_draw_for_two(rng, x):
    noise = rng.laplace(0, 2 * WHOLE)
    return {"sum": np.clip(x, 0, 1).sum() + noise, "high": np.sum(x > 0.5) + noise}


def a_draw_each(rng, x):
    return {
        "sum": np.clip(x, 0, 1).sum() + rng.laplace(0, 2 * WHOLE),
        "high": np.sum(x > 0.5) + rng.laplace(0, 2 * WHOLE),
    }


# 5. a generator set back to its state
def state_set_back(x):
    state = np.random.get_state()
    first = np.clip(x, 0, 1).sum() + np.random.laplace(0, 2 * WHOLE)
    np.random.set_state(state)
    return first, np.sum(x > 0.5) + np.random.laplace(0, 2 * WHOLE)


def state_left_alone(x):
    first = np.clip(x, 0, 1).sum() + np.random.laplace(0, 2 * WHOLE)
    return first, np.sum(x > 0.5) + np.random.laplace(0, 2 * WHOLE)


# 6. and 7. a constant seed, of a generator and of the whole process
def seeded_by_a_constant(x):
    return np.clip(x, 0, 1).sum() + np.random.default_rng(42).laplace(0, WHOLE)


def seeded_by_the_system(x):
    return np.clip(x, 0, 1).sum() + np.random.default_rng().laplace(0, WHOLE)


def seeded_globally(x):
    np.random.seed(0)
    return float(np.clip(x, 0, 1).sum() + np.random.laplace(0, WHOLE))


def seeded_by_secrets(x):
    np.random.seed(secrets.randbits(32))
    return float(np.clip(x, 0, 1).sum() + np.random.laplace(0, WHOLE))


# 8. one seed for two generators
def one_seed_for_two(rng, x):
    seed = random.getrandbits(64)
    first, second = (np.random.default_rng(seed) for _ in range(2))
    return [np.clip(x, 0, 1).sum() + first.laplace(0, 2), np.sum(x > 0.5) + second.laplace(0, 2)]


def spawned_generators(rng, x):
    first, second = rng.spawn(2)
    return [np.clip(x, 0, 1).sum() + first.laplace(0, 2), np.sum(x > 0.5) + second.laplace(0, 2)]


# 9. scales taken from the data
def scale_of_the_largest(rng, x):
    return x.sum() + rng.laplace(0, x.max() * WHOLE)


def scale_of_the_bound(rng, x):
    return x.sum() + rng.laplace(0, 1.0 * WHOLE)


# 10. a released sum divided by a private number of rows
def private_number_of_rows(rng, x):
    return (np.clip(x, 0, 1).sum() + rng.laplace(0, WHOLE)) / len(x)


def public_number_of_rows(rng, x):
    return (np.clip(x, 0, 1).sum() + rng.laplace(0, WHOLE)) / 4


# 11. an early exit
def early_exit(rng, x):
    if np.sum(x > 0.5) < 2:
        return 0.0
    return np.clip(x, 0, 1).sum() + rng.laplace(0, WHOLE)


def exit_by_a_release(rng, x):
    if np.sum(x > 0.5) + rng.laplace(0, 2 * WHOLE) < -30:
        return 0.0
    return np.clip(x, 0, 1).sum() + rng.laplace(0, 2 * WHOLE)


# 12. a number of queries that depends on the data
def query_for_each_high_row(rng, x):
    return [0.5 + rng.laplace(0, WHOLE) for _ in range(int(np.sum(x > 0.5)))]


def query_for_each_threshold(rng, x):
    return [float(np.sum(x > level)) + rng.laplace(0, 2 * WHOLE) for level in (0.3, 0.5)]


# 13. keys found in the data
def keys_of_the_data(rng, x):
    return {int(key): np.sum(x == key) + rng.laplace(0, WHOLE) for key in np.unique(x)}


def keys_of_a_list(rng, x):
    return {key: np.sum(x == key) + rng.laplace(0, WHOLE) for key in range(3)}


# 14. a vector as long as the data
def noise_for_each_row(rng, x):
    return np.clip(x, 0, 1) + rng.laplace(0, WHOLE, len(x))


def noise_for_each_bin(rng, x):
    return np.histogram(x, bins=4, range=(0, 1))[0] + rng.laplace(0, WHOLE, 4)


# 15. noise before the clip
def noise_before_the_clip(rng, x):
    noisy = x + rng.laplace(0, 1, len(x))  # each row is clipped once it has noise: 50 stays 50
    return noisy


def clip_before_the_noise(rng, x):
    return np.clip(x, 0, 1) + rng.laplace(0, 1, len(x))


# 16. b = s epsilon for b = s / epsilon
def scale_times_epsilon(rng, x):
    return np.clip(x, 0, 1).sum() + rng.laplace(0, 1 * 0.25)


def scale_over_epsilon(rng, x):
    return np.clip(x, 0, 1).sum() + rng.laplace(0, 1 / 0.25)


# 17. the classical Gaussian beyond epsilon 1
def classical_gaussian(rng, x):
    deviation = math.sqrt(2 * math.log(1.25 / 1e-3)) / 8.0
    return np.clip(x, 0, 1).sum() + rng.normal(0, deviation)


def analytic_gaussian(rng, x):
    return np.clip(x, 0, 1).sum() + rng.normal(0, dp_accounting.get_sigma_gaussian(8.0, 1e-3))


# 18. k queries, each at the whole epsilon
def whole_budget_each(rng, x):
    return [np.sum(x > level) + rng.laplace(0, WHOLE) for level in (0.3, 0.5, 0.8)]


def budget_shared(rng, x):
    return [np.sum(x > level) + rng.laplace(0, 3 * WHOLE) for level in (0.3, 0.5, 0.8)]


# 19. noise in whole numbers on a value that is none
def rounded_noise(rng, x):
    return x.sum() + np.rint(rng.laplace(0, WHOLE))


def rounded_value(rng, x):
    return np.rint(np.sum(x > 0.5)) + np.rint(rng.laplace(0, WHOLE))


# 20. normal noise of a variance where a deviation is asked for
def deviation_for_variance(x):
    return [random.gauss(one, 0.05**2) for one in np.clip(x, 0, 1)]


def deviation(x):
    return [random.gauss(one, 5.0) for one in np.clip(x, 0, 1)]


# 21. a value beside the noise: NaN passes a clip (dp-recorder's example of many libraries)
def nan_passes_the_clip(rng, x):
    return np.clip(x, 0, 1).sum() + rng.laplace(0, WHOLE)


def nan_is_a_number(rng, x):
    return np.clip(np.nan_to_num(x), 0, 1).sum() + rng.laplace(0, WHOLE)


# 22. SciPy's noise where the scale is a rate
def rate_for_scale(x):
    return np.clip(x, 0, 1).sum() + stats.laplace.rvs(loc=0, scale=0.2)


def scipy_scale(x):
    return np.clip(x, 0, 1).sum() + stats.laplace.rvs(loc=0, scale=1.0)


# 23. the value is the location of the noise, and a debug field holds it bare
def bare_beside(rng, x):
    total = float(np.clip(x, 0, 1).sum())
    return {"release": rng.laplace(total, WHOLE), "debug": total}


def location(rng, x):
    return {"release": rng.laplace(float(np.clip(x, 0, 1).sum()), WHOLE), "debug": 0.0}


# 24. a choice at random whose probabilities tell more than they may
def sharp_choice(rng, x):
    weights = np.exp(4 * np.array([np.sum(x > 0.5), np.sum(x <= 0.5)]))
    return int(rng.choice(2, p=weights / weights.sum()))


def soft_choice(rng, x):
    weights = np.exp(0.5 * np.array([np.sum(x > 0.5), np.sum(x <= 0.5)]))
    return int(rng.choice(2, p=weights / weights.sum()))


NAN = np.array([0.2, 0.7, 0.4, 0.9]), np.array([0.2, 0.7, 0.4, np.nan])
PLANTED = [
    Planted("sensitivity", without_clip, mean_of_clipped, *OUTLIER, PURE),
    Planted("sensitivity", mean_scale_of_more_rows, mean_scale, np.ones(4), np.array([1.0, 1, 1, 0]), PURE),
    Planted("missing_noise", last_coordinate_bare, every_coordinate, *ROWS, PURE),
    Planted("noise_reuse", one_draw_for_two, a_draw_each, *ROWS, PURE),
    Planted("noise_reuse", state_set_back, state_left_alone, *ROWS, PURE),
    Planted("constant_seed", seeded_by_a_constant, seeded_by_the_system, *ROWS, PURE),
    Planted("constant_seed", seeded_globally, seeded_by_secrets, *ROWS, PURE),
    Planted("noise_reuse", one_seed_for_two, spawned_generators, *ROWS, PURE),
    Planted("data_dependent_scale", scale_of_the_largest, scale_of_the_bound, *ROWS, PURE),
    Planted("data_dependent_scale", private_number_of_rows, public_number_of_rows, *FEWER, PURE),
    Planted("control_flow", early_exit, exit_by_a_release, *ROWS, PURE),
    Planted("control_flow", query_for_each_high_row, query_for_each_threshold, *ROWS, Claim(1.5)),
    Planted("data_dependent_output", keys_of_the_data, keys_of_a_list, *LABELS, PURE),
    Planted("data_dependent_shape", noise_for_each_row, noise_for_each_bin, *FEWER, PURE),
    Planted("sensitivity", noise_before_the_clip, clip_before_the_noise, *OUTLIER, PURE),
    Planted("sensitivity", scale_times_epsilon, scale_over_epsilon, np.ones(3), np.array([1.0, 1, 0]), Claim(0.25)),
    Planted("sensitivity", classical_gaussian, analytic_gaussian, np.ones(3), np.array([1.0, 1, 0]), Claim(8.0, 1e-3)),
    Planted("budget", whole_budget_each, budget_shared, *ROWS, PURE),
    Planted("rounded_noise", rounded_noise, rounded_value, *ROWS, PURE),
    Planted("sensitivity", deviation_for_variance, deviation, *ROWS, APPROXIMATE),
    Planted("sensitivity", nan_passes_the_clip, nan_is_a_number, *NAN, PURE),
    Planted("sensitivity", rate_for_scale, scipy_scale, *ROWS, PURE),
    Planted("data_dependent_output", bare_beside, location, *ROWS, PURE),
]
