"""Tumult Core: its noise mechanisms, which draw from the operating system and need no Spark session."""

import numpy as np
from tmlt.core.domains.numpy_domains import NumpyFloatDomain
from tmlt.core.measurements.noise_mechanisms import AddGeometricNoise, AddLaplaceNoise

from dpaudit import Claim
from experiments.libraries.promise import Promise

LIBRARY = "tmlt-core"


def promise(name, measurement, kind):
    """What the measurement's own privacy function says of inputs at distance 1."""
    claim = Claim(float(measurement.privacy_function(1).to_float(round_up=True)), neighbouring="add_remove")
    return Promise(name, claim, lambda rng, x: measurement(kind(x)), 0, 1, trials=4_000)


def promises():
    yield promise("AddGeometricNoise", AddGeometricNoise(1), np.int64)
    yield promise("AddLaplaceNoise", AddLaplaceNoise(NumpyFloatDomain(), 1), np.float64)
