"""Rounds of alternating minimisation: plain ALS without noise, its noise, and what leaves the boundary."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpaudit import InputError
from dpaudit.data.ratings import from_arrays
from dpaudit.personalization.als import least_squares, solve, steps
from dpaudit.personalization.als.layout import arranged, by_user
from dpaudit.personalization.als.least_squares import Shares
from dpaudit.personalization.als.steps import Prior, Step, item_factors
from dpaudit.personalization.boundary.aggregator import replay, run
from dpaudit.personalization.boundary.processes import memoryless
from tests.personalization import people

KEY, START = jax.random.key(0), memoryless()
STEP, SHARES = Step(0.8, 1.5, steps.adaptive(0.25)), Shares(0.3, 0.7)
PRIOR = Prior(jnp.array([0.5, 0.2]), 3.0, 0.4)
FEATURES = jnp.asarray(np.random.default_rng(8).normal(size=(people.ITEMS, 3)), jnp.float32)
POPULATION, USERS, ROUNDS = people.honest(40, seed=5), 40, 3
MODEL = people.model(seed=6)


@cache
def protocol(noise_multiplier=2.0, step=STEP, shares=SHARES, features=3):
    known = FEATURES[:, :features]
    return least_squares.alternating(
        step, noise_multiplier=noise_multiplier, features=known, prior=PRIOR, shares=shares
    )


def ratings(rows=POPULATION):
    flat = [(u, *rating) for u, row in enumerate(rows) for rating in row]
    columns = map(np.array, zip(*flat, strict=True))
    return from_arrays(*columns, num_users=len(rows), num_items=people.ITEMS, low=-9, high=9)


def ran(buckets, **settings):
    return run(KEY, protocol(**settings), MODEL, START, buckets, ROUNDS)


def by_numpy(rows, model):
    """Uniform weights, no features: every round all users, then all items, in float64."""
    public, factors, _, mean, precision = (np.asarray(leaf, np.float64) for leaf in model)
    p, rank = public.shape[1], factors.shape[1]
    for _ in range(ROUNDS):
        gram, moment = np.zeros((people.ITEMS, rank, rank)), np.zeros((people.ITEMS, rank))
        for row in filter(None, rows):
            items, values = [item for item, _ in row], np.array([value for _, value in row])
            own = np.concatenate([public, factors], axis=1)[items]
            u = np.linalg.solve(own.T @ own + np.diag(precision), own.T @ values + precision * mean)
            left = np.clip(values - public[items] @ u[:p], -STEP.rating_clip, STEP.rating_clip)
            clipped = u[p:] * min(1, STEP.factor_norm / np.linalg.norm(u[p:]))
            for item, value in zip(items, left, strict=True):
                gram[item] += np.outer(clipped, clipped) / len(row) ** 0.5
                moment[item] += value * clipped / len(row) ** 0.5
        ridge = PRIOR.rating_variance * np.diag(1 / np.asarray(PRIOR.variance, np.float64))
        factors = np.linalg.solve(gram + ridge, moment[..., None])[..., 0]
    return factors


@pytest.mark.integration
def test_without_noise_rounds_are_plain_alternating_least_squares():
    silent = protocol(noise_multiplier=0.0, step=STEP._replace(weights=steps.uniform), features=0)
    model = MODEL._replace(popularity=jnp.zeros(people.ITEMS))
    found, _, transcript = run(KEY, silent, model, START, arranged(ratings()), ROUNDS)
    wanted = by_numpy(POPULATION, model)
    np.testing.assert_allclose(found.factors, wanted, atol=2e-5)
    assert np.abs(by_numpy(POPULATION[:-1], model) - wanted).max() > 1e-3
    assert transcript.mu() == np.inf


@pytest.mark.integration
def test_totals_do_not_depend_on_buckets_padding_or_the_order_of_users():
    devices = jax.jit(protocol(step=STEP._replace(unobserved=0.2), shares=Shares(0.3, 0.5, 0.2)).devices)
    wanted = devices(KEY, MODEL, arranged(ratings()))
    shuffled = [POPULATION[u] for u in np.random.default_rng(9).permutation(USERS)]
    others = arranged(ratings(), buckets=[2, 7], rows=32), arranged(ratings(shuffled))
    for buckets in others:
        found = devices(KEY, MODEL, buckets)
        jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), found, wanted)
    fewer = devices(KEY, MODEL, arranged(ratings([[], *POPULATION[1:]])))
    assert min(np.abs(a - b).max() for a, b in zip(fewer, wanted, strict=True)) > 1e-2


def test_releases_have_the_noise_that_they_are_accounted_with():
    z, runs, shares = 2.0, 4_000, Shares(0.2, 0.5, 0.3)
    noisy = protocol(noise_multiplier=z, step=STEP._replace(unobserved=0.2), shares=shares)
    nobody = noisy.devices(KEY, MODEL, (people.batch([[]], 4),))
    keys = jax.random.split(KEY, runs)
    told = jax.jit(jax.vmap(lambda key: noisy.release(key, nobody, START)[0][0].value))(keys)
    length, rating = STEP.factor_norm, STEP.rating_clip
    moved = {"gram": length**2 / 0.2**0.5, "moment": rating * length / 0.5**0.5, "users": length**2 / 0.3**0.5}
    diagonal = np.eye(people.RANK, dtype=bool)
    for name, most in moved.items():
        noise = np.asarray(most * told[name], np.float64)
        halves = np.ones(people.RANK)
        if name != "moment":
            noise, halves = solve.unpacked(jnp.asarray(noise), people.RANK), np.where(diagonal, 1.0, 0.5)
        variance = np.asarray(noise).var(axis=0) / (z * most) ** 2
        np.testing.assert_allclose(variance, np.broadcast_to(halves, variance.shape), rtol=4.5 * np.sqrt(2 / runs))
    assert 4.5 * np.sqrt(2 / runs) < 0.25  # a share that was wrong by as much would show


@pytest.mark.integration
def test_the_server_knows_how_noisy_what_it_is_told_is():
    z, unobserved, shares = 2.0, 0.2, Shares(0.2, 0.5, 0.3)
    noisy = protocol(noise_multiplier=z, step=STEP._replace(unobserved=unobserved), shares=shares)
    model, _, transcript = run(KEY, noisy, MODEL, START, arranged(ratings()), 1)
    told = jax.tree.map(lambda leaf: leaf[0], transcript.values("statistics"))
    length, rating = STEP.factor_norm, STEP.rating_clip
    gram, everybody = (solve.unpacked(length**2 * told[name], people.RANK) for name in ("gram", "users"))
    known = jnp.column_stack([FEATURES[:, :3], jnp.log(jnp.maximum(MODEL.popularity, 1.0))])
    moment, stddev = rating * length / 0.5**0.5 * told["moment"], z * rating * length / 0.5**0.5
    whole = gram / 0.2**0.5 + unobserved * everybody / 0.3**0.5
    wanted = item_factors(whole, moment, known, PRIOR, moment_stddev=stddev)
    np.testing.assert_allclose(model.factors, wanted, atol=1e-4 * np.abs(wanted).max())
    careless = item_factors(whole, moment, known, PRIOR, moment_stddev=stddev / 2)
    assert np.abs(careless - wanted).max() > 1e-2 * np.abs(wanted).max()


@pytest.mark.integration
def test_the_transcript_alone_gives_the_model_and_has_no_room_for_users():
    model, memory, first = ran(arranged(ratings()))
    assert first.mu() == pytest.approx(ROUNDS**0.5 / 2.0, rel=1e-12)
    again, _, then = run(jax.random.key(1), protocol(), model, memory, arranged(ratings()), ROUNDS)
    for left, right in zip(replay(protocol(), MODEL, first + then), again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert not np.array_equal(replay(protocol(), MODEL, first).factors, again.factors)
    coordinates = solve.coordinates(people.RANK)
    shapes = {"gram": (ROUNDS, people.ITEMS, coordinates), "moment": (ROUNDS, people.ITEMS, people.RANK)}
    for rows in (POPULATION, POPULATION[:7]):
        told = jax.eval_shape(lambda buckets: ran(buckets)[2].parts[0][0].value, arranged(ratings(rows)))
        assert {name: leaf.shape for name, leaf in told.items()} == shapes


@pytest.mark.parametrize("rule", [steps.uniform, steps.tail(2), steps.adaptive(0.25)])
def test_with_what_was_released_fixed_nobody_s_result_depends_on_another_user(rule):
    """The billboard: a user's factor and what their device sends are of the public model and their own ratings."""
    step = STEP._replace(weights=rule)
    buckets = arranged(ratings())

    @jax.jit
    def of_everybody(buckets):
        results = []
        for users in buckets:
            known = steps.common(MODEL), steps.taken(MODEL, users.items), users
            results.append((steps.solved(step, *known), steps.statistics(step, *known).moment.sum(axis=1)))
        return [by_user(buckets, part, USERS) for part in zip(*results, strict=True)]

    wanted = of_everybody(buckets)
    for changed in (0, 17, 39):
        other = tuple(
            users._replace(
                items=jnp.where((users.index == changed)[:, None], users.items[:, ::-1], users.items),
                values=jnp.where((users.index == changed)[:, None], 9.0 - users.values, users.values),
            )
            for users in buckets
        )
        for found, before in zip(of_everybody(other), wanted, strict=True):
            same = np.all(np.asarray(found) == np.asarray(before), axis=1)
            assert not same[changed] or not POPULATION[changed]
            assert same.sum() >= USERS - 1


def test_runs_are_functions_of_their_key():
    first, second = (ran(arranged(ratings()))[0].factors for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = run(jax.random.key(1), protocol(), MODEL, START, arranged(ratings()), ROUNDS)[0].factors
    assert np.abs(np.asarray(other - first)).min() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridge": 0.0}, "^ridge: expected a finite number > 0, got 0.0$"),
        ({"rating_variance": np.nan}, "^rating_variance: expected a finite number > 0, got nan$"),
        ({"variance": jnp.array([1.0, -1.0])}, "^variance: expected finite numbers > 0, got -1.0$"),
    ],
)
def test_a_prior_of_which_the_server_would_make_nan_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        least_squares.alternating(
            STEP, noise_multiplier=1.0, features=jnp.ones((3, 1)), prior=PRIOR._replace(**change)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": STEP._replace(factor_norm=0.0)}, "factor_norm: expected a finite number > 0, got 0.0"),
        ({"step": STEP._replace(rating_clip=np.inf)}, "rating_clip: expected a finite number > 0, got inf"),
        ({"step": STEP._replace(unobserved=-1.0)}, "unobserved: expected a finite number >= 0, got -1.0"),
        ({"step": STEP._replace(unobserved=0.1)}, "shares: expected numbers >= 0 that add up to 1, users > 0 exactly"),
        ({"shares": Shares(0.3, 0.5, 0.2)}, "shares: expected numbers >= 0 that add up to 1, users > 0 exactly"),
        ({"shares": Shares(0.3, 0.3)}, r"shares: expected numbers >= 0 that add up to 1.*got \(0.3, 0.3, 0.0\)"),
        ({"shares": Shares(-0.5, 1.5)}, "shares: expected numbers >= 0 that add up to 1"),
        ({"noise_multiplier": -1.0}, "noise_multiplier: expected a finite number >= 0, got -1.0"),
    ],
)
def test_settings_out_of_range(change, message):
    with pytest.raises(InputError, match=message):
        protocol(**change)
