"""Sound mechanisms of many forms are not accused: what replaying cannot judge is left to the audit."""

import math
import random
import secrets

import numpy as np
import pytest

from dpaudit import Claim, record

X0 = np.array([0.2, 0.7, 0.4, 0.9, 0.1])
X1 = np.array([0.2, 0.7, 0.4, 0.1, 0.1])
LESS = X0[:-1]
PURE, APPROXIMATE = Claim(1.0), Claim(1.0, 1e-5)


def inverse_of_the_distribution(rng, x):
    u = rng.random() - 0.5
    return x.sum() - np.sign(u) * np.log(1 - 2 * abs(u))


def inverse_by_math(x):
    u = random.random() - 0.5
    return x.sum() - math.copysign(1, u) * math.log(1 - 2 * abs(u))


def box_muller(x):
    system = secrets.SystemRandom()
    return x.sum() + 5 * math.sqrt(-2 * math.log(system.random())) * math.cos(2 * math.pi * system.random())


def discrete_laplace(rng, x):
    p = 1 - math.exp(-1)
    return np.sum(x > 0.5) + rng.geometric(p) - rng.geometric(p)


def two_sided_exponential(x):
    return x.sum() + random.choice((-1, 1)) * random.expovariate(1.0)


def sparse_vector(rng, x):
    threshold = 1.0 + rng.laplace(0, 2)
    for level in (0.8, 0.5, 0.3):
        if np.sum(x > level) + rng.laplace(0, 4) >= threshold:
            return level
    return 0.0


def noisy_max(rng, x):
    return int(np.argmax(np.histogram(x, bins=4, range=(0, 1))[0] + rng.laplace(0, 2, 4)))


def exponential_mechanism(rng, x):
    weights = np.exp(0.5 * np.histogram(x, bins=4, range=(0, 1))[0])
    return int(rng.choice(4, p=weights / weights.sum()))


def gumbel_max(rng, x):
    return int(np.argmax(0.5 * np.histogram(x, bins=4, range=(0, 1))[0] + rng.gumbel(size=4)))


def randomised_bits(rng, x):
    flips = rng.random(len(x)) < 0.2689
    return (x > 0.5) ^ flips


def stable_histogram(rng, x):
    keys = np.unique(np.floor(x * 10)).tolist()
    noisy = {key: np.sum(np.floor(x * 10) == key) + rng.laplace(0, 2) for key in keys}
    return {key: count for key, count in noisy.items() if count > 1 + 2 * 2 * math.log(1e5)}


def gradient_descent(rng, x):
    weight = 0.0
    for _ in range(3):
        taken = rng.random(len(x)) < 0.5
        weight -= 0.1 * (np.clip(weight - x, -1, 1) * taken).sum() + rng.normal(0, 5.0)
    return weight


def amplified(rng, x):
    """Keeps the claim by subsampling alone: of a row that is taken, the noise gives away more."""
    return np.clip(x, 0, 1)[rng.random(len(x)) < 0.1].sum() + rng.normal(0, 0.9)


def a_bit_beside(rng, x):
    return np.append(x[:1] + rng.laplace(0, 1, 1), float((x[3] > 0.5) ^ (rng.random() < 0.2689)))


def full_gradient_descent(rng, x):
    weight = np.zeros(2)
    for _ in range(4):
        gradient = np.clip(np.stack([weight[0] - x, weight[1] - 2 * x], axis=1), -0.5, 0.5).sum(axis=0)
        weight = weight - 0.1 * (gradient + rng.normal(0, 12.0, 2))
    return weight


def descent_in_another_order(rng, x):
    weight = 0.0
    for _ in range(4):
        weight = weight - 0.1 * np.clip(weight - x, -0.5, 0.5).sum() + rng.normal(0, 1.0)
    return weight


def correlated_noise(rng, x):
    mixing = np.tril(np.ones((3, 3)))
    return np.cumsum(np.histogram(x, bins=3, range=(0, 1))[0]) + mixing @ rng.normal(0, 12.0, 3)


def in_place(rng, x):
    total = np.zeros(2)
    total += [x.sum(), np.sum(x > 0.5)]
    total += rng.laplace(0, 2, 2)
    total /= 5
    return np.round(total, 2)


def mean_of_noisy_rows(rng, x):
    return (np.clip(x, 0, 1) + rng.laplace(0, 1, len(x))).mean()


def through_a_list(rng, x):
    return np.array([float(x.sum()) + rng.laplace(0, 2), int(np.sum(x > 0.5)) + rng.laplace(0, 2)])


def public_coins(rng, x):
    rows = rng.normal(size=(2, len(x)))
    return rows, np.sign(rows @ np.zeros(len(x))), x.sum() + rng.laplace(0, 1)


def shuffled(rng, x):
    x = x.copy()
    rng.shuffle(x)
    return x.sum() + rng.laplace(0, 1)


def ternary(rng, x):
    noisy = x.sum() + rng.laplace(0, 1)
    return {"text": f"{noisy:.3f}", "sign": "+" if noisy > 0 else "-", "root": math.sqrt(abs(noisy))}


class Model:
    def __init__(self, weight):
        self.weight = weight
        self.name = "model"


def fitted(rng, x):
    return Model(np.clip(x, 0, 1).sum() / 5 + rng.laplace(0, 0.2, 1))


def state_saved(x):
    state = random.getstate()
    noise = random.gauss(0, 5)
    random.setstate(state)
    random.gauss(0, 1)
    return x.sum() + noise


SOUND = [
    *((one, X1, PURE) for one in (inverse_of_the_distribution, inverse_by_math, discrete_laplace)),
    *((one, X1, PURE) for one in (two_sided_exponential, sparse_vector, noisy_max, exponential_mechanism, gumbel_max)),
    *((one, X1, Claim(2.0)) for one in (randomised_bits, ternary, shuffled, public_coins, fitted, in_place)),
    *((one, X1, APPROXIMATE) for one in (box_muller, gradient_descent, full_gradient_descent, correlated_noise)),
    (descent_in_another_order, X1, APPROXIMATE),
    *((one, X1, APPROXIMATE) for one in (state_saved, mean_of_noisy_rows, through_a_list)),
    (sparse_vector, LESS, PURE),
    (noisy_max, LESS, PURE),
    (correlated_noise, LESS, APPROXIMATE),
    (full_gradient_descent, LESS, APPROXIMATE),
    (stable_histogram, X1, Claim(2.0, 2e-5)),
]


@pytest.mark.parametrize("function, other, claim", [pytest.param(*one, id=one[0].__name__) for one in SOUND])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_mechanism_is_not_accused(function, other, claim, seed):
    found = record(function, X0, other, claim=claim, trials=0, seed=seed)
    if function is stable_histogram:  # the draws depend on the data: the audit decides, as there is a delta
        assert found.kinds <= {"control_flow", "data_dependent_shape"}
        return
    assert found.verdict in ("consistent", "underpowered"), str(found)
    assert found.findings == (), str(found)


def test_most_of_them_are_judged_without_trials():
    """Additive noise is, however the code around it is written."""
    decided = (full_gradient_descent, in_place, through_a_list, ternary, fitted, exponential_mechanism)
    cases = [case for case in SOUND if case[0] in decided]
    assert len(cases) > len(decided)
    for function, other, claim in cases:
        found = record(function, X0, other, claim=claim, trials=0)
        assert found.verdict == "consistent", f"{function.__name__}: {found}"
