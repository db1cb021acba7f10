"""The settings of paper 000, Section 5.4, read back out of gradients that show their image and label openly."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit.audits import craft, oracle

CLASSES = 4
IMAGES = np.arange(10.0).reshape(10, 1) + 100  # image i is [100 + i]
LABELS = np.array([0, 1, 2, 3, 0, 1, 2, 3, 0, 0])


def gradient(scale, image, label):
    return scale * jnp.array([image[0], label, 1.0])


MODEL, OTHER_MODEL = Partial(gradient, jnp.float32(1.0)), Partial(gradient, jnp.float32(2.0))


@jax.jit
def every(crafted, keys):
    return jax.vmap(crafted)(keys)


def drawn(crafted, count=400, seed=0) -> tuple[np.ndarray, np.ndarray]:
    g0, g1 = every(crafted, jax.random.split(jax.random.key(seed), count))
    return np.asarray(g0), np.asarray(g1)


def is_record(g: np.ndarray, scale: float = 1.0) -> bool:
    image, label = (g[:, 0] / scale - 100).astype(int), g[:, 1] / scale
    return bool((LABELS[image] == label).all() and (g[:, 2] == scale).all())


def even(values: np.ndarray, choices: int) -> bool:
    """Each of the choices about equally often: within 5 standard errors."""
    counts, p = np.unique(values, return_counts=True)[1], 1 / choices
    within = np.abs(counts - len(values) * p) <= 5 * math.sqrt(len(values) * p * (1 - p))
    return len(counts) == choices and bool(within.all())


def test_benign_is_two_different_records_of_the_clients_own():
    g0, g1 = drawn(craft.benign(MODEL, IMAGES, LABELS))
    assert is_record(g0)
    assert is_record(g1)
    assert (g0[:, 0] != g1[:, 0]).all()
    assert even(g0[:, 0], 10)
    assert even(g1[:, 0], 10)
    assert len(np.unique(np.stack([g0[:, 0], g1[:, 0]]), axis=1).T) > 80  # of 90 ordered pairs


def test_label_flip_changes_the_label_and_nothing_else():
    g0, g1 = drawn(craft.label_flip(MODEL, IMAGES, LABELS, CLASSES))
    assert is_record(g0)
    np.testing.assert_array_equal(g0[:, [0, 2]], g1[:, [0, 2]])
    assert (g0[:, 1] != g1[:, 1]).all()
    assert set(np.unique(g1[:, 1])) == {0.0, 1.0, 2.0, 3.0}
    assert even((g1 - g0)[:, 1] % CLASSES, CLASSES - 1)
    assert even(g0[:, 0], 10)


def test_the_likeliest_other_label_is_the_models_own_guess_without_the_right_one():
    """A model that finds label image mod 4 likeliest, then the one after it; all images but one have the first."""

    def logits(image):
        first = image[0].astype(int) % CLASSES
        return jnp.zeros(CLASSES).at[first].set(2.0).at[(first + 1) % CLASSES].set(1.0)

    g0, g1 = drawn(craft.label_flip(MODEL, IMAGES, LABELS, CLASSES, choose=craft.likeliest_other(Partial(logits))))
    own, first = g0[:, 1], g0[:, 0].astype(int) % CLASSES
    assert (g0[:, 0] == g1[:, 0]).all()
    assert {True, False} == set(own == first)
    np.testing.assert_array_equal(g1[:, 1], np.where(own == first, (first + 1) % CLASSES, first))


def test_gradient_flip_is_a_gradient_and_its_negative():
    g0, g1 = drawn(craft.gradient_flip(MODEL, IMAGES, LABELS))
    assert is_record(g0)
    np.testing.assert_array_equal(g1, -g0)
    assert even(g0[:, 0], 10)


def test_collusion_is_the_other_model_on_other_labels_and_flipped():
    g0, g1 = drawn(craft.collusion(OTHER_MODEL, IMAGES, LABELS, 0))
    assert is_record(g0, scale=2.0)
    assert (g0[:, 1] != 0).all()
    assert even(g0[:, 0], 6)
    np.testing.assert_array_equal(g1, -g0)


@pytest.mark.parametrize("dimension, clip_norm", [(1, 2.0), (16, 0.5), (26_010, 1.0)])
def test_dummy_has_norm_l_everywhere_lambda_and_is_the_worst_pair(dimension, clip_norm):
    g0, g1 = craft.dummy(dimension, clip_norm)(jax.random.key(0))
    np.testing.assert_allclose(g0, np.full(dimension, clip_norm / math.sqrt(dimension)), rtol=1e-6)
    np.testing.assert_array_equal(g1, -g0)
    assert np.linalg.norm(np.asarray(g0, np.float64)) == pytest.approx(clip_norm, rel=1e-6)
    fpr, fnr = oracle.ldp_sgd_cosine(g0, g1, epsilon=4.0, clip_norm=clip_norm)
    assert (fpr, fnr) == pytest.approx((1 / (1 + math.exp(4)),) * 2, rel=1e-4)


def test_counter_examples_are_those_of_section_4_1_and_show_little():
    for crafted, support in ((craft.zero_against_large(6, 0.5), slice(None)), (craft.watermark(6, 0.5), slice(1, 2))):
        g0, g1 = (np.asarray(g) for g in crafted(jax.random.key(0)))
        assert not g0.any()
        expected = np.zeros(6)
        expected[support] = 5.0
        np.testing.assert_array_equal(g1, expected)
        fpr, fnr = oracle.ldp_sgd_cosine(g0, g1, epsilon=4.0, clip_norm=0.5)
        assert fpr == pytest.approx(0.5)
        assert fnr == pytest.approx(1 / (1 + math.exp(4)))


def test_a_pair_is_a_function_of_the_key_alone():
    for crafted in (craft.benign(MODEL, IMAGES, LABELS), craft.label_flip(MODEL, IMAGES, LABELS, CLASSES)):
        np.testing.assert_array_equal(drawn(crafted), drawn(crafted))
        other = drawn(crafted, seed=1)
        assert all(
            (ours != theirs).any(axis=1).mean() > 0.5 for ours, theirs in zip(drawn(crafted), other, strict=True)
        )


def test_a_plain_gradient_function_will_do():
    g0, _ = drawn(craft.gradient_flip(lambda image, label: gradient(1.0, image, label), IMAGES, LABELS))
    assert is_record(g0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: craft.benign(MODEL, IMAGES[:1], LABELS[:1]), "^records: expected a whole number >= 2, got 1$"),
        (lambda: craft.label_flip(MODEL, IMAGES[:0], LABELS[:0], 3), "^records: expected a whole number >= 1, got 0$"),
        (lambda: craft.label_flip(MODEL, IMAGES, LABELS, 1), "^num_classes: expected a whole number >= 2, got 1$"),
        (lambda: craft.gradient_flip(MODEL, IMAGES[:0], LABELS[:0]), "^records: expected a whole number >= 1, got 0$"),
        (
            lambda: craft.collusion(MODEL, IMAGES[[0, 4]], LABELS[[0, 4]], 0),
            "^labels: expected some that differ from trained_label 0, got none$",
        ),
        (lambda: craft.dummy(0, 1.0), "^dimension: expected a whole number >= 1, got 0$"),
        (lambda: craft.zero_against_large(0, 1.0), "^dimension: expected a whole number >= 1, got 0$"),
        (lambda: craft.watermark(1, 1.0), "^dimension: expected a whole number >= 2, got 1$"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(_validate.InputError, match=message):
        call()
