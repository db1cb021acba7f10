"""IBM's diffprivlib. Noise of floats is left to its own row: every such mechanism of it shares the fault."""

import numpy as np
from diffprivlib import mechanisms, tools
from diffprivlib.accountant import BudgetAccountant
from diffprivlib.models import LinearRegression

from dpaudit import Claim, distinguish
from experiments.libraries.promise import Promise

LIBRARY = "diffprivlib"
REGRESSION = "https://github.com/IBM/differential-privacy-library/issues/105"
FLOATING_POINT = "https://github.com/IBM/differential-privacy-library/issues/94"
BOUNDS = {"bounds_X": (0.0, 100.0), "bounds_y": (0.0, 1.0)}


def source(rng):
    """The legacy generator that diffprivlib takes, drawing from the trial's own."""
    return np.random.RandomState(rng.bit_generator)


def of(mechanism, **arguments):
    """A mechanism's ``randomise``, made anew for each trial with the trial's generator."""
    return lambda rng, x: mechanism(**arguments, random_state=source(rng)).randomise(x)


def regression(rng, x):
    """The coefficient of a line through the origin."""
    model = LinearRegression(epsilon=1.0, fit_intercept=False, **BOUNDS, random_state=source(rng))
    return model.fit(x[:, :1], x[:, 1], sample_weight=None).coef_


def chosen(rng, x):
    """An index, chosen by utilities of sensitivity 1."""
    return mechanisms.Exponential(epsilon=1.0, sensitivity=1.0, utility=x, random_state=source(rng)).randomise()


def flipped(rng, x):
    return mechanisms.PermuteAndFlip(epsilon=1.0, sensitivity=1.0, utility=x, random_state=source(rng)).randomise()


def count(rng, x):
    return tools.count_nonzero(x, epsilon=1.0, random_state=source(rng), accountant=BudgetAccountant())


def histogram(rng, x):
    own = {"random_state": source(rng), "accountant": BudgetAccountant()}
    return tools.histogram(x, epsilon=1.0, bins=3, range=(0, 3), **own)[0]


def promises():
    one, local = Claim(1.0, neighbouring="add_remove"), Claim(1.0)
    unit = {"epsilon": 1.0, "sensitivity": 1}
    yield Promise("Geometric", one, of(mechanisms.Geometric, **unit), 3, 4)
    yield Promise("GeometricTruncated", one, of(mechanisms.GeometricTruncated, **unit, lower=0, upper=5), 0, 1)
    yield Promise("GeometricFolded", one, of(mechanisms.GeometricFolded, **unit, lower=0, upper=5), 0, 1)
    discrete = of(mechanisms.GaussianDiscrete, epsilon=1.0, delta=0.01, sensitivity=1)
    yield Promise("GaussianDiscrete", Claim(1.0, 0.01, "add_remove"), discrete, 0, 1)
    binary = of(mechanisms.Binary, epsilon=1.0, value0="no", value1="yes")
    yield Promise("Binary", local, binary, "no", "yes")
    yield Promise("Exponential", local, chosen, [1.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    yield Promise("PermuteAndFlip", local, flipped, [1.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    yield Promise("Snapping", one, of(mechanisms.Snapping, **unit, lower=-4.0, upper=4.0), 0.0, 1.0)
    yield Promise("count_nonzero", local, count, [1, 0, 1, 0], [1, 0, 1, 1])
    yield Promise("histogram", one, histogram, [0.5, 1.5], [0.5, 1.5, 1.5])
    laplace = of(mechanisms.Laplace, epsilon=1.0, sensitivity=1.0)
    low = {"issue": FLOATING_POINT, "attacks": (distinguish.lowest_bits,)}
    yield Promise("Laplace", one, laplace, 0.0, 1.0, **low)
    x0 = np.array([[0.01, 0.0]])
    yield Promise("LinearRegression", local, regression, x0, np.array([[100.0, 0.0]]), trials=4_000, issue=REGRESSION)
