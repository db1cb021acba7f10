"""smartnoise-synth, newest: the covariance matrix of its regression."""

import pandas as pd
from snsynth.models.dp_covariance import DPcovariance

from dpaudit import Claim
from experiments.libraries.promise import Promise, seed_globals

LIBRARY = "smartnoise-synth"


def covariance(rng, x):
    """The variance of a column whose values are promised to lie in [0, 1]."""
    seed_globals(rng)
    made = DPcovariance(len(x), [0], pd.DataFrame({0: [0.0, 1.0]}), global_eps=1.0)
    return made.release(pd.DataFrame({0: x}))[0]


def outlier(issue=None):
    """One of ten values is replaced by another that is far out of the promised range."""
    x0 = [0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6, 0.5, 0.35]
    return Promise("DPcovariance", Claim(1.0), covariance, x0, [*x0[:-1], 50.0], trials=4_000, issue=issue)


def promises():
    yield outlier()
