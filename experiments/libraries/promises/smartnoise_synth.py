"""smartnoise-synth, newest: the covariance matrix of its regression."""

import importlib.util
from importlib.metadata import files

import numpy as np
import pandas as pd

from dpaudit import Claim
from experiments.libraries.promise import Promise, seed_globals

LIBRARY = "smartnoise-synth"


def loaded(ending):
    """A module by its file: the package that it lies in imports a module that scikit-learn no longer has."""
    (file,) = (file for file in files(LIBRARY) or [] if str(file).endswith(ending))
    spec = importlib.util.spec_from_file_location(file.stem, str(file.locate()))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DPcovariance = loaded("models/dp_covariance.py").DPcovariance


def covariance(rng, x):
    """The covariances of two columns whose values are promised to lie in [0, 1]."""
    seed_globals(rng)
    made = DPcovariance(len(x), [0, 1], pd.DataFrame({0: [0.0, 1.0], 1: [0.0, 1.0]}), global_eps=1.0)
    return np.array(made.release(pd.DataFrame(x, columns=[0, 1])))


def outlier(issue=None):
    """One of eight records is replaced by another that is far out of the promised range."""
    x0 = [[0.1, 0.9], [0.3, 0.7], [0.2, 0.8], [0.4, 0.6], [0.55, 0.35], [0.9, 0.2], [0.8, 0.45], [0.65, 0.15]]
    return Promise("DPcovariance", Claim(1.0), covariance, x0, [*x0[:-1], [50.0, 50.0]], trials=2_000, issue=issue)


def promises():
    yield outlier()
