"""PipelineDP: its own computations, and a whole aggregation on its local backend."""

import pipeline_dp
from pipeline_dp import dp_computations

from dpaudit import Claim
from experiments.libraries.promise import Promise

LIBRARY = "pipeline-dp"
DELTA = 0.01


def aggregated(rng, x):
    """The counts of two public partitions, of rows (person, partition)."""
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1.0, total_delta=1e-6)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    params = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.LAPLACE, metrics=[pipeline_dp.Metrics.COUNT],
        max_partitions_contributed=1, max_contributions_per_partition=1,
    )  # fmt: skip
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0], partition_extractor=lambda row: row[1], value_extractor=lambda row: 0
    )
    counts = engine.aggregate(x, params, extractors, public_partitions=["a", "b"])
    accountant.compute_budgets()
    return {key: metrics.count for key, metrics in counts}


def promises():
    one = Claim(1.0, neighbouring="add_remove")
    yield Promise("Laplace mechanism", one, lambda rng, x: dp_computations.apply_laplace_mechanism(x, 1.0, 1.0), 0, 1)
    gaussian = Claim(1.0, DELTA, "add_remove")
    yield Promise(
        "Gaussian mechanism",
        gaussian,
        lambda rng, x: dp_computations.apply_gaussian_mechanism(x, 1.0, DELTA, 1.0),
        0,
        1,
    )
    people = [(1, "a"), (2, "b"), (3, "b")]
    yield Promise("counts of partitions", one, aggregated, people, people[:2], trials=4_000)
