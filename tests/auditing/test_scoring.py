"""The finalists of the family: picked on the whole pilot, and scored by what was fitted there."""

from functools import partial

import jax
import numpy as np

from dpaudit.auditing.attacks import features, scoring

N = 600  # pairs


def played(*releases: np.ndarray) -> tuple[list[np.ndarray], scoring.Layout, np.ndarray]:
    """Leaves [2, n, ...] with their layout and as the words [n, 2, w] that devices return."""
    words = jax.vmap(jax.vmap(scoring.words))(list(releases))
    arrays_of = scoring.layout([leaf[0, 0] for leaf in releases])
    return list(releases), arrays_of, np.ascontiguousarray(np.moveaxis(np.asarray(words), 1, 0))


def test_finalists_are_what_shows_most_in_hundreds_of_pairs():
    """In the first two pairs many of forty numbers seem to tell the worlds apart."""
    for which in (7, 31):
        noise = np.random.default_rng(which).normal(size=(2, N, 40)).astype(np.float32)
        noise[1, :, which] += 1.5
        leaves, _, _ = played(noise)
        arrays, shown = scoring.fitted(leaves, None, delta=0.0, confidence=0.95)
        names = features.names(arrays.sight)
        coordinates = [names[i] for i in arrays.singles if names[i].startswith("coordinate ")]
        assert coordinates[0] == f"coordinate {which}"  # beside it, directions that weigh all numbers
        assert f"coordinate {which}" in [names[i] for i in arrays.listed]
        assert shown.argmax() == arrays.singles[0]


def test_a_table_scores_a_release_by_how_often_either_world_gives_it():
    draws = np.random.default_rng(1)
    chances = np.array([[0.6, 0.3, 0.1], [0.2, 0.1, 0.7]])
    category = np.stack([draws.choice(3, N, p=of_world) for of_world in chances]).astype(np.uint8)
    leaves, arrays_of, words = played(category, draws.normal(size=(2, N)).astype(np.float32))
    arrays, _ = scoring.fitted(leaves, None, delta=0.0, confidence=0.95)
    wanted = np.ones(scoring.OTHERS, bool)
    how = {"arrays_of": arrays_of, "others": 0, "block": N, "mesh": None}
    scores = np.moveaxis(np.asarray(scoring.scored(words, wanted, arrays, **how)), 1, 0)
    by_table = scores[..., -1 - len(scoring.SUMS) - len(arrays.listed)]  # of the best table
    ratio = np.log(chances[1] / chances[0])
    for value in range(3):
        found = by_table[category == value]
        assert np.ptp(found) == 0
        np.testing.assert_allclose(found[0], ratio[value], atol=0.4)  # 3 standard errors at 60 releases


def test_scores_have_32_bits_where_jax_computes_in_64():
    leaves, arrays_of, words = played(np.random.default_rng(2).normal(size=(2, N)).astype(np.float32))
    arrays, _ = scoring.fitted(leaves, None, delta=0.0, confidence=0.95)
    how = {"arrays_of": arrays_of, "others": 0, "block": N, "mesh": None}
    with jax.enable_x64(True):
        scores = jax.eval_shape(partial(scoring.scored, **how), words, np.ones(scoring.OTHERS, bool), arrays)
    assert scores.dtype == np.float32
