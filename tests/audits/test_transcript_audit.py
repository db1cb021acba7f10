"""Likelihood ratios of whole transcripts: all that is accounted, no more, and each fault beyond its claim."""

from functools import cache

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

import dpaudit
from dpaudit import InputError, distinguish
from dpaudit.auditing.bounds import gdp
from dpaudit.audits.transcript_audit import ABSENT, PRESENT, extreme, whole
from experiments.paper004 import faults as cases

KEY, EPSILON, DELTA = jax.random.key(2), 1.0, 1e-5
MU = 1 / dp_accounting.get_sigma_gaussian(EPSILON, DELTA)


@cache
def mechanism(name, mu=MU):
    make, rank, rounds = cases.SOUND[name]
    return whole(cases.recipe(make, rounds**0.5 / mu, rounds=rounds, rank=rank), delta=DELTA)


def scored(mechanism, trials):
    """Log likelihood ratios of both worlds, [2, trials], float64, and the reaches of all rounds. The world is an
    argument, so that a run is compiled once for both."""
    score = distinguish.likelihood_ratio.fit(KEY, mechanism, ABSENT, PRESENT)

    def both(key, present):
        seen = mechanism.apply(key, present)
        return jnp.concatenate([score(seen)[None], seen.reach])

    @jax.jit
    def played(keys, present):
        found = jax.lax.map(jax.vmap(lambda key: both(key, present)), keys.reshape(-1, 1_000))
        return found.reshape(trials, -1)

    keys = jax.random.split(KEY, (2, trials))
    found = np.stack([played(keys[world], present) for world, present in enumerate((ABSENT, PRESENT))])
    return np.asarray(found[..., 0], np.float64), found[..., 1:]


def assert_meets(mechanism, trials, tolerance):
    """The scores are N(-mu^2/2, mu^2) and N(mu^2/2, mu^2), mu to within the tolerance."""
    scores, reach = scored(mechanism, trials)
    assert np.mean(np.abs(reach - 1) < 1e-5) > 1 - 1e-4  # the canary attains the sensitivity
    normal = (scores + MU**2 / 2) / MU
    for sample, mean in zip(normal, (0.0, MU), strict=True):
        assert kstest(sample - mean, "norm").pvalue > 1e-3
    audited = normal[1].mean() - normal[0].mean()
    assert abs(audited - MU) < tolerance
    assert mechanism.claim.epsilon == pytest.approx(EPSILON, rel=1e-4)
    errors = int((scores[0] > 0).sum()), int((scores[1] <= 0).sum())
    lower, upper = gdp.mu_bounds(*errors, trials, trials, confidence=0.999)
    assert lower < MU < upper


@pytest.mark.slow
def test_rounds_spend_what_is_accounted():
    trials = 20_000
    assert_meets(mechanism("rounds, adaptive weights"), trials, 4 * np.sqrt(2 / trials))


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.SOUND)
def test_the_audited_mu_meets_the_accounted_one_within_three_percent(name):
    trials = 500_000
    assert 4 * np.sqrt(2 / trials) < 0.03 * MU  # the tolerance is four standard errors
    assert_meets(mechanism(name), trials, 0.03 * MU)


@pytest.mark.integration
def test_scores_of_a_little_less_noise_would_not_pass():
    make, rank, rounds = cases.SOUND["popularity"]
    sound = cases.recipe(make, 1 / MU, rounds=rounds, rank=rank)
    careless = sound._replace(make=lambda *, noise_multiplier: make(noise_multiplier=0.95 * noise_multiplier))
    scores, _ = scored(whole(careless, delta=DELTA), 20_000)
    normal = (scores - [[-(MU**2) / 2], [MU**2 / 2]]) / MU
    assert kstest(normal[0], "norm").pvalue < 1e-3
    for sample in normal:  # and nothing else is wrong with them
        assert kstest(sample / 0.95, "norm").pvalue > 1e-3


@pytest.mark.integration
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.slow] * (fault == "a count on the side")) for fault in cases.FAULTS],
)
def test_faults_are_caught(fault):
    """By the likelihood ratio against the whole curve, of which a tenth of the trials that one (epsilon, delta) takes
    show a fault; or by all attacks, where the likelihood ratio hardly sees it."""
    make, memory = cases.FAULTS[fault]
    hardly = fault == "a count on the side"
    broken = whole(cases.recipe(make, 1 / MU, rounds=1, memory=memory), delta=DELTA if hardly else None)
    assert broken.claim is not None
    assert broken.claim.epsilon_at(DELTA) == pytest.approx(EPSILON, rel=1e-3)
    if hardly:
        result = dpaudit.audit(broken, ABSENT, PRESENT, key=KEY, trials=4_000_000)
    else:
        result = dpaudit.from_scores(*scored(broken, 10_000)[0], claim=broken.claim, delta=DELTA)
    assert result.verdict == "violation"
    if fault == "ratings not clipped":
        assert result.epsilon_lower < float(gdp.epsilon_from_mu(5**0.5 * MU, DELTA)) < 2.45  # sqrt(1/2 + 9/2) mu


def test_settings_out_of_range():
    with pytest.raises(InputError, match="item: expected a whole number >= 0, got -1"):
        extreme(item=-1)
    make, rank, rounds = cases.SOUND["popularity"]
    with pytest.raises(InputError, match="noise_multiplier: expected a finite number > 0, got 0"):
        whole(cases.recipe(make, 0.0, rounds=rounds, rank=rank), delta=DELTA)
