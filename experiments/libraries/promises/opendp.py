"""OpenDP, which draws from the operating system."""

import opendp.prelude as dp

from dpaudit import Claim
from experiments.libraries.promise import Promise

dp.enable_features("contrib", "honest-but-curious")

LIBRARY = "opendp"
THRESHOLD = "https://github.com/opendp/opendp/issues/2922"
FLOATS = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
INTEGERS = dp.atom_domain(T=int), dp.absolute_distance(T=int)
VECTORS = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
SCORES = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
RECORDS = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
NAMES = dp.vector_domain(dp.atom_domain(T=str)), dp.symmetric_distance()


def promise(name, measurement, x0, x1, distance, neighbouring="add_remove", issue=None, **settings):
    """The promise that a measurement's own privacy map makes."""
    loss = measurement.map(distance)
    epsilon, delta = loss if isinstance(loss, tuple) else (loss, 0.0)
    claim = Claim(epsilon, delta, neighbouring)
    return Promise(name, claim, lambda rng, x: measurement(x), x0, x1, issue=issue, **settings)


def approximate(measurement, delta):
    """A measurement of zero-concentrated privacy as one of (epsilon, delta)."""
    return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(measurement), delta)


def promises():
    yield promise("laplace, float", dp.m.make_laplace(*FLOATS, scale=1.0), 0.0, 1.0, 1.0)
    yield promise("laplace, int", dp.m.make_laplace(*INTEGERS, scale=1.0), 0, 1, 1)
    yield promise("laplace, vector", dp.m.make_laplace(*VECTORS, scale=1.0), [3, 0, 1], [3, 1, 1], 1)
    yield promise("geometric, bounded", dp.m.make_geometric(*INTEGERS, scale=1.0, bounds=(0, 5)), 0, 1, 1)
    gaussian = approximate(dp.m.make_gaussian(*FLOATS, scale=1.0), 0.01)
    yield promise("gaussian, float", gaussian, 0.0, 1.0, 1.0)
    yield promise("gaussian, int", approximate(dp.m.make_gaussian(*INTEGERS, scale=1.0), 0.01), 0, 1, 1)
    canonical = dp.m.make_canonical_noise(*FLOATS, d_in=1.0, d_out=(1.0, 1e-3))
    yield promise("canonical noise", canonical, 0.0, 1.0, 1.0)
    response = dp.m.make_randomized_response(["red", "green", "blue"], prob=0.6)
    yield promise("randomized response, strings", response, "red", "blue", 1, "replace")
    yield promise(
        "randomized response, bool", dp.m.make_randomized_response_bool(prob=0.75), False, True, 1, "replace"
    )
    largest = dp.m.make_noisy_max(*SCORES, dp.max_divergence(), scale=1.0)
    yield promise("noisy max", largest, [1, 1, 0], [0, 2, 1], 1)
    count = dp.t.make_count(*RECORDS) >> dp.m.then_laplace(scale=1.0)
    yield promise("count", count, [1, 2], [1, 2, 3], 1)
    clamped = dp.t.make_clamp(*RECORDS, bounds=(0, 10)) >> dp.t.then_sum() >> dp.m.then_laplace(scale=10.0)
    yield promise("clamped sum", clamped, [1, 2], [1, 2, 99], 1)
    quantile = dp.m.make_private_quantile(
        *RECORDS, dp.max_divergence(), candidates=[0, 2, 4, 6, 8], alpha=0.5, scale=1.0
    )
    yield promise("quantile", quantile, [1, 5, 7], [1, 5, 7, 7], 1)
    categories = dp.t.make_count_by_categories(*NAMES, ["a", "b"]) >> dp.m.then_laplace(scale=1.0)
    yield promise("counts by categories", categories, ["a", "b"], ["a", "b", "b"], 1)
    keys = dp.t.make_count_by(*NAMES) >> dp.m.then_laplace_threshold(scale=1.0, threshold=5)
    yield promise("laplace threshold", keys, [], ["a"], 1, issue=THRESHOLD, trials=30_000)
