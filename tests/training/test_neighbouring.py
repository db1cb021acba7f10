"""Neighbouring data sets: the noise of Eq. (8) by hand, the hardest record by a loop, worlds apart by one gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import softmax
from scipy.stats import chisquare

from dpaudit import _validate, data
from dpaudit.training import models
from dpaudit.training.dp_sgd import dp_sgd, train
from dpaudit.training.many import train_many
from dpaudit.training.neighbouring import (
    HARDEST,
    HARDEST_PERTURBED,
    RANDOM,
    RANDOM_PERTURBED,
    adversarial,
    hardest_target,
    losses,
    perturbed,
    random_target,
    split,
    weighted,
    with_target,
    world,
)
from dpaudit.training.sampling import poisson

KEY = jax.random.key(43)
N, PIXELS, CLASSES, SHADOWS = 60, (3, 2), 4, 3


def loss(params, image, label):
    return -jax.nn.log_softmax(image.ravel() @ params["w"] + params["b"])[label]


def records(rng):
    return rng.random((N, *PIXELS), np.float32), rng.integers(0, CLASSES, N, np.int32)


def linear_shadows(rng, scale=2.0):
    w, b = rng.normal(0, scale, (SHADOWS, 6, CLASSES)), rng.normal(size=(SHADOWS, CLASSES))
    return {"w": w.astype(np.float32), "b": b.astype(np.float32)}


IMAGES, LABELS = records(np.random.default_rng(1))
LINEAR = linear_shadows(np.random.default_rng(2))
MEMBERS, SHADOW = split(jax.random.key(3), N, members=20, shadow=30)


def gradients(shadows, image, label):
    """[n, 6], float64: W (softmax(W'x + b) - e_y) of every linear model."""
    w, b = (np.asarray(shadows[name], np.float64) for name in "wb")
    apart = softmax(np.einsum("i,nik->nk", image.ravel().astype(np.float64), w) + b, axis=1) - np.eye(CLASSES)[label]
    return np.einsum("nik,nk->ni", w, apart)


def climbed(direction, image, label, steps, step_size):
    x = image.astype(np.float64)
    for _ in range(steps):
        x = x + step_size * direction(gradients(LINEAR, x, label)).reshape(PIXELS)
    return x


@pytest.mark.parametrize("steps, step_size", [(1, 0.01), (6, 0.3)])
def test_a_step_is_that_of_equation_8(steps, step_size):
    found, wrong = [], {"a model's sign, not the mean's": [], "one model": [], "downhill": []}
    for image, label in zip(IMAGES[:20], LABELS[:20], strict=True):
        ours = adversarial(loss, LINEAR, image, label, steps=steps, step_size=step_size)
        by_hand = climbed(lambda g: np.sign(g.mean(0)), image, label, steps, step_size)
        np.testing.assert_allclose(ours, by_hand, rtol=0, atol=1e-6)
        found.append(ours)
        others = lambda g: np.sign(g).mean(0), lambda g: np.sign(g[0]), lambda g: -np.sign(g.mean(0))
        for name, other in zip(wrong, others, strict=True):
            wrong[name].append(climbed(other, image, label, steps, step_size))
    for name, points in wrong.items():
        assert np.abs(np.stack(found) - np.stack(points)).max() > 0.9 * step_size, name


def test_the_loss_rises_as_a_convex_one_must_and_pixels_leave_their_range():
    """f(x + alpha sign g) >= f(x) + alpha |g|_1, by the defaults of 40 steps of 0.01."""
    path = [IMAGES[0]]
    for _ in range(40):
        path.append(np.asarray(adversarial(loss, LINEAR, path[-1], LABELS[0], steps=1)))
    np.testing.assert_array_equal(adversarial(loss, LINEAR, IMAGES[0], LABELS[0]), path[-1])
    mean = losses(loss, LINEAR, np.stack(path), np.repeat(LABELS[0], 41), np.arange(41)).mean(axis=0)
    steepness = np.array([np.abs(gradients(LINEAR, x, LABELS[0]).mean(axis=0)).sum() for x in path[:-1]])
    assert np.all(np.diff(mean) > 0.01 * steepness - 1e-5)
    assert steepness.min() > 0.01
    assert np.abs(path[-1] - path[0]).max() == pytest.approx(0.4, abs=1e-5)
    assert path[-1].max() > 1  # and is not clipped


def test_where_the_mean_gradient_is_zero_a_pixel_stays():
    unseen = {"w": LINEAR["w"].copy(), "b": LINEAR["b"]}
    unseen["w"][:, 2] = 0.0
    moved = np.asarray(adversarial(loss, unseen, IMAGES[0], LABELS[0])) != IMAGES[0]
    assert moved.ravel().tolist() == [True, True, False, True, True, True]
    for pulls, moves in [([1.0, -1.0], False), ([1.0, 1.0], True)]:
        image = adversarial(lambda w, x, y: w * x.sum(), np.array(pulls, np.float32), IMAGES[0], LABELS[0])
        assert np.any(image != IMAGES[0]) == moves


def test_losses_are_those_of_a_loop_whatever_the_batch():
    by_hand = [
        [-np.log(softmax(IMAGES[row].ravel() @ w + b)[LABELS[row]]) for row in MEMBERS]
        for w, b in zip(LINEAR["w"], LINEAR["b"], strict=True)
    ]
    for batch_size in (1, 7, 1000):
        found = losses(loss, LINEAR, IMAGES, LABELS, MEMBERS, batch_size=batch_size)
        np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=1e-5)


def of_table(row, image, label):
    return row[label]


def test_the_hardest_record_is_a_loops_and_the_first_of_several():
    """Losses of whole numbers, so that many are tied and means are exact."""
    rng = np.random.default_rng(7)
    labels = np.arange(12)
    tied = other = 0
    for _ in range(40):
        table = rng.integers(0, 4, (3, 12)).astype(np.float32)
        members = rng.permutation(12)[:8]
        means = [table[:, row].sum() for row in members]
        by_hand = next(row for row, mean in zip(members, means, strict=True) if mean == max(means))
        pair = hardest_target(of_table, table, labels, labels, members, batch_size=4)
        assert (pair.origin, pair.label) == (by_hand, by_hand)
        tied += means.count(max(means)) > 1
        other += by_hand != table.sum(axis=0).argmax()  # of all records, not of D' alone
    assert min(tied, other) >= 10


def all_four(key):
    first = random_target(key, IMAGES, LABELS, MEMBERS)
    third = hardest_target(loss, LINEAR, IMAGES, LABELS, MEMBERS)
    return [first, perturbed(loss, LINEAR, first), third, perturbed(loss, LINEAR, third)]


def test_the_two_worlds_differ_in_the_target_alone():
    pairs = all_four(KEY)
    assert [pair.number for pair in pairs] == [RANDOM, RANDOM_PERTURBED, HARDEST, HARDEST_PERTURBED] == [1, 2, 3, 4]
    for pair in pairs:
        assert sorted([*pair.kept, pair.origin]) == MEMBERS.tolist()
        rows = pair.rows(IMAGES, LABELS)
        for present in (0, 1):
            images, labels = (np.asarray(leaf)[np.asarray(world(rows, present).present) == 1] for leaf in rows.records)
            np.testing.assert_array_equal(images[: len(pair.kept)], IMAGES[pair.kept])
            np.testing.assert_array_equal(labels[: len(pair.kept)], LABELS[pair.kept])
            assert len(images) == len(labels) == len(pair.kept) + present
        np.testing.assert_array_equal(images[-1], pair.image)
        assert labels[-1] == pair.label == LABELS[pair.origin]
        noise = np.abs(pair.image - IMAGES[pair.origin])
        assert noise.max() == pytest.approx(0.4 * (pair.number in (2, 4)), abs=1e-5)
    assert pairs[0].origin == pairs[1].origin != pairs[2].origin == pairs[3].origin


def test_the_same_key_gives_the_same_sets_and_every_member_its_turn():
    for pair, again in zip(all_four(KEY), all_four(KEY), strict=True):
        jax.tree.map(np.testing.assert_array_equal, pair, again)
    chosen = [random_target(key, IMAGES, LABELS, [7, 2, 9, 4]).origin for key in jax.random.split(KEY, 400)]
    counts = [chosen.count(row) for row in (7, 2, 9, 4)]
    assert sum(counts) == 400
    assert chisquare(counts).pvalue > 1e-3
    assert chisquare(counts, [150, 100, 100, 50]).pvalue < 1e-3


def test_shadow_data_is_never_a_members():
    seen = np.zeros((2, 12), int)
    for key in jax.random.split(KEY, 200):
        members, shadow = split(key, 12, members=5, shadow=4)
        assert len({*members, *shadow}) == 9
        assert sorted(members) == list(members)
        seen[0, members] += 1
        seen[1, shadow] += 1
        np.testing.assert_array_equal(members, split(key, 12, members=5, shadow=4).members)
    for counts, size in zip(seen, (5, 4), strict=True):
        error = np.sqrt(200 * size / 12 * (1 - size / 12))
        assert np.abs(counts - 200 * size / 12).max() < 4 * error
    assert [len(rows) for rows in split(KEY, 12, members=8, shadow=4)] == [8, 4]


def trained(pair_rows, keys, coins, loss_fn, noise_multiplier, steps, **settings):
    """Networks of both worlds by one program; every batch takes every row."""
    size = len(pair_rows.present)
    how = {"clip_norm": 0.5, "batch_size": size, "optimizer": optax.sgd(1.0)}
    trainer = dp_sgd(weighted(loss_fn), noise_multiplier=noise_multiplier, **how, **settings)
    start = trainer.init({name: jnp.asarray(leaf[0]) for name, leaf in LINEAR.items()})

    def run(key, present):
        return train(key, trainer, start, world(pair_rows, present), poisson(size, size), steps)[0].params

    return train_many(run, (keys, coins))


def test_a_step_in_both_worlds_differs_by_the_targets_clipped_gradient():
    pair = hardest_target(loss, LINEAR, IMAGES, LABELS, MEMBERS)
    keys = jnp.repeat(KEY, 2)
    params = trained(pair.rows(IMAGES, LABELS), keys, jnp.array([0.0, 1.0]), lambda p, e: loss(p, *e), 1.0, 1)
    probabilities = softmax(pair.image.ravel() @ LINEAR["w"][0] + LINEAR["b"][0]) - np.eye(CLASSES)[pair.label]
    by_hand = np.concatenate([np.outer(pair.image, probabilities), [probabilities]])
    assert np.linalg.norm(by_hand) > 0.5
    by_hand *= 0.5 / np.linalg.norm(by_hand) / len(MEMBERS)
    apart = np.concatenate([params["w"][0] - params["w"][1], (params["b"][0] - params["b"][1])[None]])
    np.testing.assert_allclose(apart, by_hand, atol=1e-6)
    assert np.abs(by_hand).max() > 1e-3


@pytest.mark.integration
def test_with_dropout_too_nothing_of_an_absent_target_is_seen():
    def dropped(params, example, key):
        return loss(params, example[0] * 2 * jax.random.bernoulli(key, 0.5, PIXELS), example[1])

    plain, noisy = all_four(KEY)[2:]
    keys, coins = jnp.repeat(KEY, 2), jnp.array([0.0, 1.0])
    networks = [
        trained(pair.rows(IMAGES, LABELS), keys, coins, dropped, 0.1, 3, dropout=True) for pair in (plain, noisy)
    ]
    np.testing.assert_array_equal(networks[0]["w"][0], networks[1]["w"][0])
    assert np.abs(networks[0]["w"][1] - networks[1]["w"][1]).max() > 1e-4


def test_a_network_of_the_library_finds_noise_harder_than_chance():
    """Eq. (8) against untrained CNN8s: more loss for the noise than for as much noise of random signs."""
    digits, model = data.load("digits"), models.CNN8()
    starts = [models.initial_parameters(key, model, (8, 8, 1)) for key in jax.random.split(KEY, 4)]
    shadows = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    of_model = models.cross_entropy(model)
    image, label = digits.inputs[0], digits.labels[0]
    signs = np.random.default_rng(5).choice([-0.4, 0.4], (64, 8, 8, 1)).astype(np.float32)
    tried = np.stack([image, adversarial(of_model, shadows, image, label), *(image + signs)])
    found = losses(of_model, shadows, tried, np.repeat(label, len(tried)), np.arange(len(tried))).mean(axis=0)
    assert found[1] > found[2:].max() > found[0]


def test_a_bad_input_is_refused_by_name():
    expected = _validate.InputError
    for settings, message in [
        ({"members": 1, "shadow": 3}, "members: expected a whole number >= 2, got 1"),
        ({"members": 3, "shadow": 0}, "shadow: expected a whole number >= 1, got 0"),
        ({"members": 8, "shadow": 3}, r"members \+ shadow: expected at most 10, the number of records, got 11"),
    ]:
        with pytest.raises(expected, match=message):
            split(KEY, 10, **settings)
    for members, message in [
        ([5], r"members: expected an array of shape \[m\] of whole numbers, m >= 2, got int64 of shape \[1\]"),
        ([0.0, 1.0], "members: expected an array of .* got float64"),
        ([0, N], r"members: expected different rows in 0..59, got array\(\[ 0, 60\]\)"),
        ([-1, 1], "members: expected different rows in 0..59"),
        ([4, 4], "members: expected different rows in 0..59"),
    ]:
        with pytest.raises(expected, match=message):
            random_target(KEY, IMAGES, LABELS, members)
    with pytest.raises(expected, match=r"labels: expected shape \[60\], one per image, got shape \[59\]"):
        hardest_target(loss, LINEAR, IMAGES, LABELS[1:], MEMBERS)
    with pytest.raises(expected, match="batch_size: expected a whole number >= 1, got 0"):
        hardest_target(loss, LINEAR, IMAGES, LABELS, MEMBERS, batch_size=0)
    with pytest.raises(expected, match=r"rows: expected an array of shape \[d\] with d >= 1, got shape \[0\]"):
        losses(loss, LINEAR, IMAGES, LABELS, [])
    for rows in ([0, N], [-1], [0.0]):
        with pytest.raises(expected, match=r"rows: expected whole numbers in 0..59, got array"):
            losses(loss, LINEAR, jnp.asarray(IMAGES), LABELS, rows)
    with pytest.raises(expected, match="pair: expected data set 1 or 3, whose target has no noise, got data set 4"):
        perturbed(loss, LINEAR, all_four(KEY)[3])


def test_whole_numbers_may_be_floats():
    sizes: dict = {"records": 1e1, "members": 3.0, "shadow": 2.0}
    batches: dict = {"batch_size": 16.0}
    np.testing.assert_array_equal(split(KEY, **sizes).members, split(KEY, 10, members=3, shadow=2).members)
    found = losses(loss, LINEAR, IMAGES, LABELS, MEMBERS, **batches)
    np.testing.assert_array_equal(found, losses(loss, LINEAR, IMAGES, LABELS, MEMBERS))


def test_bad_noise_is_refused_by_name():
    pair = random_target(KEY, IMAGES, LABELS, MEMBERS)
    none = {name: leaf[:0] for name, leaf in LINEAR.items()}
    uneven = LINEAR | {"b": LINEAR["b"][1:]}
    broken = LINEAR | {"b": LINEAR["b"] * np.nan}
    wanted = r"shadows: expected leaves with one leading axis of n >= 1 shadow models, got \[\[%s\]\]"
    for shadows, settings, message in [
        (none, {}, wanted % "0"),
        (uneven, {}, wanted % r"2\], \[3"),
        (LINEAR, {"steps": 0}, "steps: expected a whole number >= 1, got 0"),
        (LINEAR, {"step_size": 0.0}, "step_size: expected a finite number > 0, got 0.0"),
        (broken, {}, "noise: expected finite numbers, got 6 NaN or infinite of 6"),
    ]:
        with pytest.raises(_validate.InputError, match=message):
            perturbed(loss, shadows, pair, **settings)
    for shadows, message in [(none, wanted % "0"), (broken, "losses: expected finite numbers, got 60 NaN")]:
        with pytest.raises(_validate.InputError, match=message):
            hardest_target(loss, shadows, IMAGES, LABELS, MEMBERS)
    with pytest.raises(_validate.InputError, match="image: expected floating-point pixels, got uint8"):
        adversarial(loss, LINEAR, np.zeros(PIXELS, np.uint8), 0)


def test_a_target_behind_any_data():
    rows = with_target({"x": np.zeros((2, 3)), "y": np.arange(2)}, {"x": np.ones(3), "y": 7})
    assert rows.records["x"].tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3]
    assert rows.records["y"].tolist() == [0, 1, 7]
    assert world(rows, 0).present.tolist() == [1.0, 1.0, 0.0]
