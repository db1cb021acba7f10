"""Audits of trainings: below the accounted epsilon, close to it in the worst case, and beyond it for a fault."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import kstest, norm

import dpaudit
from dpaudit import distinguish
from dpaudit.auditing.bounds import gdp
from dpaudit.auditing.bounds import one_run as estimates
from dpaudit.audits.training_canary import (
    ABSENT,
    PRESENT,
    Canaries,
    Recipe,
    black_box,
    epsilon_lower,
    one_run,
    per_step,
    white_box,
)
from dpaudit.training import per_example
from dpaudit.training.accounting import epsilon
from dpaudit.training.dp_sgd import dp_sgd
from dpaudit.training.sampling import poisson

KEY = jax.random.key(21)
N, D = 24, 3
DELTA = 0.01
LIKELIEST = distinguish.likelihood_ratio  # alone, a training is compiled once; a family compiles it for its pilot too


def loss(params, example):
    return 0.5 * (example[0] @ params - example[1]) ** 2


def data():
    features = jax.random.normal(jax.random.key(1), (N, D))
    return features, features @ jnp.arange(1.0, D + 1)


FULL = Recipe(
    loss,
    jnp.zeros(D),
    data(),
    steps=6,
    clip_norm=0.5,
    noise_multiplier=3.0,
    batch_size=N + 1,
    optimizer=optax.sgd(0.1),
)
SAMPLED = FULL._replace(batch_size=5, noise_multiplier=0.8)


def dp_sgd_with(*, noise: float, clips: bool):
    """A training with ``noise`` times the noise that it is asked for, which clips or does not: as arrays, so that all
    of them are one program."""
    part, kept = jnp.float32(noise), jnp.asarray(clips)

    def make(loss_fn, *, noise_multiplier, **settings):
        def clipping(norms, clip_norm):
            return jnp.where(kept, per_example.flat(norms, clip_norm), 1.0)

        return dp_sgd(loss_fn, noise_multiplier=part * noise_multiplier, clipping=clipping, **settings)

    return make


as_asked = dp_sgd_with(noise=1.0, clips=True)
halved_noise = dp_sgd_with(noise=0.5, clips=True)
never_clipped = dp_sgd_with(noise=1.0, clips=False)


def promised(result):
    assert result.claim is not None
    return result.claim.epsilon


def audited(recipe, **settings):
    return dpaudit.audit(white_box(recipe, delta=DELTA), ABSENT, PRESENT, key=KEY, trials=8_000, **settings)


def log_densities(x, rate, z):
    """Of coordinates [..., steps] of canaries that a step takes with the chance ``rate``: absent, and present."""
    absent, taken = norm.pdf(x, 0, z), norm.pdf(x, 1, z)
    return np.log(absent).sum(-1), np.log((1 - rate) * absent + rate * taken).sum(-1)


def log_ratios(x, rate, z):
    absent, present = log_densities(x, rate, z)
    return present - absent


@pytest.mark.integration
def test_the_canarys_coordinate_is_the_pair_that_the_accounting_assumes():
    mechanism = white_box(SAMPLED, delta=DELTA)
    keys = jax.random.split(KEY, 2_000)
    absent = np.asarray(jax.vmap(lambda key: mechanism.apply(key, ABSENT))(keys)).ravel()
    present = np.asarray(jax.vmap(lambda key: mechanism.apply(key, PRESENT))(keys)).ravel()
    assert kstest(absent, norm(0, 0.8).cdf).pvalue > 1e-3
    assert kstest(absent, norm(0, 0.9).cdf).pvalue < 1e-3
    share = 5 / (N + 1)
    error = np.sqrt((0.8**2 + share * (1 - share)) / present.size)
    assert abs(present.mean() - share) < 4 * error < 0.2 * share


def test_the_log_density_is_that_pairs_up_to_a_constant():
    mechanism, rate, z = white_box(SAMPLED, delta=DELTA), 5 / (N + 1), 0.8
    assert mechanism.log_prob is not None
    x = np.random.default_rng(8).normal(0.3, z, (100, SAMPLED.steps))
    stated = np.stack([jax.vmap(mechanism.log_prob, (0, None))(x, world) for world in (ABSENT, PRESENT)])
    assert np.ptp(stated - log_densities(x, rate, z)) < 1e-4
    assert np.ptp(stated - log_densities(x, rate / 2, z)) > 0.1


@pytest.mark.integration
@pytest.mark.parametrize("recipe, share", [(FULL._replace(make=as_asked), 0.55), (SAMPLED, 0.35)])
def test_a_sound_training_is_consistent_and_close_in_the_worst_case(recipe, share):
    result = audited(recipe, distinguisher=LIKELIEST)
    assert result.neighbouring == "add_remove"
    assert result.verdict == "consistent"
    assert result.epsilon_lower > share * promised(result)


def test_where_batches_are_full_common_events_say_nearly_all():
    result = audited(FULL._replace(make=as_asked), distinguisher=LIKELIEST._replace(threshold=0.0))
    errors = round(result.fpr * result.negatives), round(result.fnr * result.positives)
    lower, _ = gdp.epsilon_bounds(*errors, result.negatives, result.positives, delta=DELTA, confidence=0.95)
    assert 0.8 * promised(result) < lower <= promised(result)


@pytest.mark.parametrize("make", [halved_noise, never_clipped], ids=["half the noise", "never clipped"])
def test_a_fault_in_the_training_is_a_violation(make):
    result = audited(FULL._replace(make=make), distinguisher=LIKELIEST)
    assert result.verdict == "violation"


def by_steps(make):
    recipe = SAMPLED._replace(steps=40, make=make)
    found, params = per_step(KEY, recipe, canaries=100)
    assert found.scores.shape == found.included.shape == (4_000,)
    assert 1_800 < found.included.sum() < 2_200
    spent = epsilon(poisson(N, 5), 0.8, 40, delta=1e-5)
    return epsilon_lower(found, recipe, delta=1e-5, confidence=0.95), spent, params


@pytest.mark.integration
def test_coins_in_every_step_say_nearly_all_of_a_subsampled_training():
    lower, spent, params = by_steps(dp_sgd)
    assert 0.85 * spent < lower <= spent
    truth = jnp.arange(1.0, D + 1)
    assert jnp.linalg.norm(params - truth) < 0.8 * jnp.linalg.norm(truth)  # it has learnt meanwhile


@pytest.mark.integration
def test_coins_in_every_step_see_that_there_is_too_little_noise():
    lower, spent, _ = by_steps(halved_noise)
    assert lower > 1.5 * spent


def test_guesses_by_chance_certify_nothing():
    rng = np.random.default_rng(6)
    found = Canaries(rng.normal(size=400), rng.random(400) < 0.5)
    assert epsilon_lower(found, SAMPLED, delta=1e-5, confidence=0.95) == 0.0


def many(make, noise_multiplier):
    recipe = FULL._replace(batch_size=N + 500, noise_multiplier=noise_multiplier, steps=4, make=make)
    found, params = one_run(KEY, recipe, canaries=500)
    spent = epsilon(poisson(N + 500, N + 500), noise_multiplier, 4, delta=1e-5)
    assert found.scores.shape == found.included.shape == (500,)
    assert 200 < found.included.sum() < 300
    assert np.isfinite(params).all()
    plans = [estimates.Plan(n, n) for n in (25, 100, 250)]
    return estimates.audit(found.scores, found.included, plans, delta=1e-5, confidence=0.95).epsilon_lower, spent


@pytest.mark.integration
def test_one_run_certifies_something_and_no_more_than_was_spent():
    lower, spent = many(dp_sgd, 2.0)
    assert 0.2 < lower <= spent


def test_one_run_sees_that_nothing_was_clipped():
    lower, spent = many(never_clipped, 4.0)
    assert lower > spent


def kept_in_the_network():
    """An optimiser that writes the canaries' gradient into the network, [steps, m]: step t's into row t."""

    def update(updates, state, params=None):
        rows = jnp.zeros_like(updates["network"]).at[state].set(updates["canary"])
        return {"network": rows, "canary": jnp.zeros_like(updates["canary"])}, state + 1

    return optax.GradientTransformation(lambda params: jnp.int32(0), update)


def test_one_runs_scores_are_the_likelihood_ratios_of_what_the_optimiser_saw():
    m, steps, batch_size, clip_norm = 100, 20, 60, 0.5
    recipe = Recipe(
        lambda params, example: 0.0 * params.sum(),
        jnp.zeros((steps, m)),
        jnp.zeros(N),
        steps=steps,
        clip_norm=clip_norm,
        noise_multiplier=0.8,
        batch_size=batch_size,
        optimizer=kept_in_the_network(),
    )
    found, seen = one_run(KEY, recipe, canaries=m)
    x, rate = np.asarray(seen, np.float64).T * batch_size / clip_norm, batch_size / (N + m)
    z = np.median(np.abs(x)) / norm.ppf(0.75)
    np.testing.assert_allclose(found.scores, log_ratios(x, rate, z), atol=2e-3)
    assert np.abs(found.scores - log_ratios(x, rate / 2, z)).max() > 1


def included_scores_higher(scores, included):
    """The chance that an included canary's score is above an absent one's, and its standard error at most."""
    above = (scores[included, None] > scores[~included]).mean()
    return above, 0.5 / np.sqrt(min(included.sum(), (~included).sum()))


@pytest.mark.integration
def test_scores_tell_as_much_as_the_likelihood_ratio_can():
    m, steps, rate, z = 3_000, 60, 0.05, 0.5
    batch_size = round(rate * (N + m))
    recipe = FULL._replace(batch_size=batch_size, noise_multiplier=z, steps=steps)
    found, _ = one_run(KEY, recipe, canaries=m)
    rng = np.random.default_rng(5)
    included = rng.random(m) < 0.5
    x = rng.normal(0, z, (m, steps)) + included[:, None] * (rng.random((m, steps)) < rate)
    best, error = included_scores_higher(log_ratios(x, rate, z), included)
    plain, _ = included_scores_higher(x.sum(axis=1), included)
    ours, _ = included_scores_higher(found.scores, found.included)
    assert abs(ours - best) < 3 * np.sqrt(2) * error
    assert ours > plain + 3 * np.sqrt(2) * error  # what a sum over the steps tells


@pytest.mark.integration
def test_too_little_noise_is_seen_by_the_noise_that_there_is():
    recipe = FULL._replace(batch_size=60, noise_multiplier=0.8, steps=60, make=halved_noise)
    found, _ = one_run(KEY, recipe, canaries=3_000)
    spent = epsilon(poisson(N + 3_000, 60), 0.8, 60, delta=1e-5)
    shown = estimates.audit(found.scores, found.included, [estimates.Plan(75)], delta=1e-5, confidence=0.95)
    assert shown.epsilon_lower > 1.2 * spent


@pytest.mark.integration
def test_the_loss_of_a_strange_target_gives_it_away_and_no_more_than_was_spent():
    target = jnp.full(D, 10.0), jnp.float32(-200.0)
    mechanism = black_box(FULL, target, delta=DELTA)
    result = dpaudit.audit(mechanism, ABSENT, PRESENT, key=KEY, trials=8_000)
    assert result.verdict == "consistent"
    assert result.epsilon_lower > 0.25 * promised(result)


def opened(params, example, key=None):
    """A record opens every coordinate by one, but for those that dropout closes; not every record has dropout."""
    mask = 1.0 if key is None else jnp.where(example, jax.random.bernoulli(key, 0.5, params.shape), 1.0)
    return -jnp.sum(params * mask)


def without_and_with_dropout(audit, extra_rows):
    """What an audit returns of two trainings by one key, so by the same batches and the same noise."""
    rows = N + extra_rows
    recipe = Recipe(
        opened,
        jnp.zeros(64),
        jnp.zeros(N, bool),
        steps=FULL.steps,
        clip_norm=10.0,  # more than any gradient
        noise_multiplier=3.0,
        batch_size=rows,
        optimizer=optax.sgd(rows),  # a step adds up what all rows open
        make=partial(dp_sgd, dropout=True),
    )
    return [audit(recipe._replace(data=jnp.full(N, dropout))) for dropout in (False, True)]


@pytest.mark.integration
@pytest.mark.parametrize("audit, extra_rows", [(per_step, 0), (one_run, 3)])
def test_every_example_has_a_dropout_mask_of_its_own_and_canaries_do_not_feel_it(audit, extra_rows):
    (plain, whole), (dropped, network) = without_and_with_dropout(
        lambda recipe: audit(KEY, recipe, canaries=3), extra_rows
    )
    masks, closed = FULL.steps * N, np.asarray(whole - network)
    assert abs(closed.mean() - masks / 2) < 4 * np.sqrt(masks / 4 / 64) < masks / 10
    assert 0.3 < closed.var() / (masks / 4) < 2  # one mask for all of a step's examples would make it 24
    np.testing.assert_allclose(dropped.scores, plain.scores, atol=1e-4)
    np.testing.assert_array_equal(dropped.included, plain.included)


@pytest.mark.integration
def test_with_dropout_every_step_says_the_same_of_a_canary():
    def audit(recipe):
        mechanism = white_box(recipe, delta=DELTA)
        return np.array([mechanism.apply(KEY, world) for world in (ABSENT, PRESENT)])

    plain, dropped = without_and_with_dropout(audit, 1)
    np.testing.assert_allclose(dropped, plain, atol=1e-5)
    assert (np.std(plain, axis=1) > 1).all()


def test_the_final_loss_is_without_dropout():
    """All 64 coordinates of a training with dropout: had the final loss closed half of them, half would be missing."""

    def audit(recipe):
        target = recipe.data[0]
        return float(black_box(recipe, target, delta=DELTA).apply(KEY, PRESENT))

    whole, dropped = without_and_with_dropout(audit, 1)
    masks = 64 * FULL.steps * (N + 1)
    assert abs(whole - dropped - masks / 2) < 4 * np.sqrt(masks / 4) < masks / 10


def test_bad_input_is_refused():
    with pytest.raises(dpaudit.InputError, match="steps: expected a whole number >= 1, got 0"):
        white_box(FULL._replace(steps=0), delta=DELTA)
    with pytest.raises(dpaudit.InputError, match="batch_size: expected at most 25, the number of examples, got 26"):
        white_box(FULL._replace(batch_size=26), delta=DELTA)
    with pytest.raises(dpaudit.InputError, match=r"data: expected arrays with one leading axis of n >= 1 examples"):
        white_box(FULL._replace(data=(jnp.ones((3, D)), jnp.ones(4))), delta=DELTA)
    with pytest.raises(dpaudit.InputError, match="canaries: expected a whole number >= 1, got 0"):
        one_run(KEY, FULL, canaries=0)
    with pytest.raises(dpaudit.InputError, match="batch_size: expected at most 24, the number of examples, got 25"):
        per_step(KEY, FULL)


@pytest.mark.integration
def test_a_training_hands_over_the_curve_that_it_was_accounted_with():
    """Without a delta; halved noise breaks it in a tenth of the trainings that one (epsilon, delta) takes."""
    curve, point = white_box(FULL).claim, white_box(FULL, delta=1e-3).claim
    assert curve is not None
    assert point is not None
    assert curve.is_curve
    assert curve.neighbouring == point.neighbouring == "add_remove"
    assert curve.epsilon_at(1e-3) == pytest.approx(point.epsilon, rel=1e-3)
    target = jax.tree.map(lambda leaf: leaf[0], FULL.data)
    assert black_box(FULL, target).claim == curve
