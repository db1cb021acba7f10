"""Audits of federated learning: close to the truth where all is sound, beyond the claim for a fault."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from scipy.stats import kstest, norm

import dpaudit
from dpaudit import distinguish
from dpaudit.auditing.bounds import gdp
from dpaudit.audits import federated_canary
from dpaudit.audits.federated_canary import Canaries, Federation
from dpaudit.federated import clients, clip_size
from dpaudit.federated.population import Population

KEY = jax.random.key(31)
ROWS, IN, OUT = 60, 40, 30
D = IN * OUT
CLIENTS, M, ROUNDS, K, Z, C = 20, 160, 80, 300, 0.7, 0.5
DELTA = 1e-5
CLAIM = dpaudit.Claim(8.0, 1e-7)
CALIBRATED = 1.4042267  # twice dp-accounting's 0.7021133 for (8, 1e-7)
HALFWAY = distinguish.projection._replace(threshold=0.0)


def loss(params, example):
    return 0.5 * jnp.sum((example[0] @ params["w"] - example[1]) ** 2)


def data():
    inputs = jax.random.normal(jax.random.key(1), (ROWS, IN))
    return inputs, jnp.tanh(inputs[:, :OUT])


PEOPLE = Partial(lambda client: (7 * client + 13 * jnp.arange(2)) % ROWS)  # of two rows each
SOUND = Federation(
    loss,
    {"w": jnp.zeros((IN, OUT))},
    Population(CLIENTS, PEOPLE, PEOPLE),
    data(),
    M,
    ROUNDS,
    clip_size.fixed(C),
    optax.sgd(1.0),
    partial(clients.gaussian, noise_multiplier=Z),
)


def never_clipped(loss_fn):
    update = clients.gradients(loss_fn)
    return update._replace(clipped_sum=lambda params, batch, clip_norm: update.clipped_sum(params, batch, None))


def looked_at(found, delta=DELTA, confidence=0.95):
    """(transcript, final model) for a client that took part as often as a canary did on average."""
    r = round(found.taken.sum() / K)
    return r, *(
        of(found, r, delta=delta, confidence=confidence)
        for of in (federated_canary.transcript, federated_canary.final_model)
    )


CLIENTS_OF = {  # with noise over C: messages of LDP-SGD are C sqrt(pi D/2)/tanh(epsilon/2) long, nearly all noise
    "gaussian": (SOUND.client, Z),
    "ldp_sgd": (partial(clients.randomized, epsilon=8.0), np.sqrt(np.pi / 2) / np.tanh(4)),
}


@cache
def played(kind: str) -> Canaries:
    return federated_canary.one_run(KEY, SOUND._replace(client=CLIENTS_OF[kind][0]), canaries=K)[0]


@pytest.mark.integration
@pytest.mark.parametrize("kind", CLIENTS_OF)
def test_a_run_tells_of_its_canaries_what_its_noise_allows(kind):
    r, seen, final = looked_at(played(kind), confidence=0.999)
    assert r == round(ROUNDS * M / (CLIENTS + K))
    error, z = 1 / np.sqrt(K), CLIENTS_OF[kind][1]
    for estimate, truth in ((seen, np.sqrt(r / M) / z), (final, r / np.sqrt(ROUNDS * M) / z)):
        assert abs(estimate.mu - truth) < 3 * error < abs(estimate.mu - 2 * truth)
        np.testing.assert_allclose(estimate.mu - estimate.mu_lower, norm.ppf(0.999) * error, rtol=0.1)
        np.testing.assert_allclose(estimate.mu_upper - estimate.mu, norm.ppf(0.999) * error, rtol=0.1)
        np.testing.assert_allclose(estimate[3:], gdp.epsilon_from_mu(estimate[:3], DELTA))
    spent = federated_canary.accounted(r, noise_multiplier=z, clients_per_round=M, delta=DELTA)
    np.testing.assert_allclose(spent, gdp.epsilon_from_mu(np.sqrt(r / M) / z, DELTA), rtol=1e-6)
    assert final.epsilon_lower < spent
    assert seen.epsilon_lower < spent < seen.epsilon_upper


def test_scores_of_absent_canaries_are_standard_normal():
    found = played("gaussian")
    absent, present = found.rounds[found.taken == 0], found.rounds[found.taken == 1]
    assert kstest(absent, "norm").pvalue > 1e-3
    assert kstest(absent, norm(0, 1.15).cdf).pvalue < 1e-3
    assert kstest(present, "norm").pvalue < 1e-3


@pytest.mark.integration
def test_a_fault_shows_in_the_transcript_and_in_the_final_model():
    """Clients who do not clip. Half the noise would be seen above: it doubles every mu."""
    client = partial(clients.gaussian, noise_multiplier=Z, each=True)
    found, _ = federated_canary.one_run(KEY, SOUND._replace(client=client, update=never_clipped), canaries=K)
    r, seen, final = looked_at(found)
    spent = federated_canary.accounted(r, noise_multiplier=Z, clients_per_round=M, delta=DELTA)
    assert seen.epsilon_lower > 1.5 * spent
    assert final.epsilon_lower > spent


def test_a_canary_adds_its_clipped_direction_to_what_the_others_send():
    few = SOUND._replace(
        population=SOUND.population._replace(clients=3),
        clients_per_round=4,
        rounds=1,
        client=partial(clients.gaussian, noise_multiplier=1e-6),
    )
    found, params = federated_canary.one_run(KEY, few, canaries=1)
    rows = jax.vmap(few.population.train)(jnp.arange(3))
    inputs, outputs = (np.asarray(leaf, np.float64)[rows] for leaf in few.data)
    gradients = -np.einsum("cni,cno->cio", inputs, outputs) / rows.shape[1]  # at the start, where W = 0
    norms = np.linalg.norm(gradients, axis=(1, 2), keepdims=True)
    assert (norms > C).all()
    whole = -4 * np.asarray(params["w"], np.float64)  # the server subtracts
    added = whole - (gradients * C / norms).sum(axis=0)
    np.testing.assert_allclose(np.linalg.norm(added), C, rtol=1e-4)
    score = np.sqrt(D) * np.sum(added * whole) / np.linalg.norm(added) / np.linalg.norm(whole)
    np.testing.assert_allclose([found.final[0], found.rounds[0, 0]], score, rtol=1e-4)


def test_the_published_one_shot_audit():
    """One release of sigma 4.22, 1.54, 0.541 is epsilon 1, 3, 10 at delta 1e-6 (Andrew et al., of 10^6 numbers)."""
    dimension, k = 20_000, 300
    rng = np.random.default_rng(7)
    c = rng.normal(size=(k, dimension))
    c /= np.linalg.norm(c, axis=1, keepdims=True)
    noise = rng.normal(size=dimension)
    for sigma, epsilon in ((4.22, 1.0), (1.54, 3.0), (0.541, 10.0)):
        total = c.sum(axis=0) + sigma * noise
        final = np.sqrt(dimension) * c @ total / np.linalg.norm(total)
        found = Canaries(final, final[None], np.ones((1, 1)), np.ones((1, k), int))
        for of in (federated_canary.final_model, federated_canary.transcript):
            estimate = of(found, 1, delta=1e-6, confidence=0.999)
            assert abs(gdp.epsilon_from_mu(1 / sigma, 1e-6) - epsilon) < 0.02
            assert abs(estimate.mu - 1 / sigma) < 3 / np.sqrt(k)
            assert estimate.epsilon_lower < epsilon < estimate.epsilon_upper


def transcripts(rng, count):
    """Runs of canaries, drawn by half of the rounds, whose means go one way for a third of their length."""
    dimension, k, rounds = 500, 20, 16
    for _ in range(count):
        c = rng.normal(size=(k, dimension))
        c /= np.linalg.norm(c, axis=1, keepdims=True)
        taken = (rng.random((rounds, k)) < 0.5).astype(int)
        means = 4 * rng.normal(size=(rounds, dimension)) + 2 * rng.normal(size=dimension) + taken @ c
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        scores = np.sqrt(dimension) * means @ c.T
        moved = means.sum(axis=0) / np.linalg.norm(means.sum(axis=0))
        yield Canaries(np.sqrt(dimension) * c @ moved, scores, means @ means.T, taken)


def test_bounds_cover_at_their_rate_though_rounds_go_one_way():
    count, truth = 200, 1 / np.sqrt(4**2 + 2**2)  # of one round: D/|mean|^2 is 1/(noise^2 + drift^2)
    missed = {"known": 0, "ignored": 0}
    for found in transcripts(np.random.default_rng(11), count):
        for overlap, covariance in (("known", found.overlap), ("ignored", np.eye(16))):
            bound = federated_canary.transcript(found._replace(overlap=covariance), 1, delta=DELTA, confidence=0.9)
            missed[overlap] += (bound.mu_lower > truth) + (bound.mu_upper < truth)
    error = np.sqrt(0.2 * 0.8 / count)
    assert abs(missed["known"] / count - 0.2) < 3 * error < missed["ignored"] / count - 0.2


def audited(noise_multiplier, each=False):
    """(lower, upper) bound of epsilon; the noise is an array, so that other noise is the same program."""
    client = partial(clients.gaussian, noise_multiplier=jnp.float32(noise_multiplier), each=each)
    settings = {"clip_norm": 0.05, "trials": 2_000, "distinguisher": HALFWAY}
    return federated_canary.as_gaussian(federated_canary.message(KEY, client, jnp.zeros(3), CLAIM, **settings))


@pytest.mark.parametrize("each", [False, True])
def test_a_message_keeps_its_claim(each):
    lower, upper = audited(CALIBRATED, each)
    assert 6.5 < lower < 8 < upper < 9.5


def test_a_message_of_half_its_noise_does_not_keep_its_claim():
    lower, upper = audited(CALIBRATED / 2)  # sensitivity C in place of 2 C
    assert 15 < lower < 18.3 < upper


def test_a_message_that_is_not_clipped_is_found_out():
    client = partial(clients.gaussian, noise_multiplier=CALIBRATED)
    settings = {"clip_norm": 0.05, "trials": 200, "distinguisher": HALFWAY, "update": never_clipped}
    result = federated_canary.message(KEY, client, jnp.zeros(3), CLAIM, **settings)
    assert result.accuracy == 1
    assert federated_canary.as_gaussian(result)[0] > 8


@pytest.mark.integration
def test_ldp_sgd_keeps_its_claim_and_a_coin_for_absent_clients_does_not():
    def audited(epsilon):
        client = partial(clients.randomized, epsilon=epsilon)
        claim = dpaudit.Claim(2.0)
        return federated_canary.message(
            KEY, client, jnp.zeros(3), claim, clip_norm=0.05, trials=20_000, distinguisher=HALFWAY
        )

    kept = audited(2.0)
    assert kept.verdict == "consistent"
    assert kept.epsilon_lower > 1.8
    broken = audited(float(np.log(2 * np.exp(2.0) - 1)))  # e^2 between present and absent
    assert broken.verdict == "violation"


def test_bad_input_is_refused():
    with pytest.raises(dpaudit.InputError, match="canaries: expected a whole number >= 1, got 0"):
        federated_canary.one_run(KEY, SOUND, canaries=0)
    with pytest.raises(dpaudit.InputError, match="rounds: expected a whole number >= 1, got 0"):
        federated_canary.one_run(KEY, SOUND._replace(rounds=0), canaries=1)
    rare = SOUND._replace(clients_per_round=1, rounds=1)
    with pytest.raises(dpaudit.InputError, match="canaries: expected enough of them that some are drawn, got 1"):
        federated_canary.one_run(KEY, rare, canaries=1)
    with pytest.raises(dpaudit.InputError, match="participations: expected at most the 80 rounds of the run, got 81"):
        federated_canary.transcript(played("gaussian"), 81, delta=DELTA, confidence=0.95)
    with pytest.raises(dpaudit.InputError, match="delta: expected a number in"):
        federated_canary.final_model(played("gaussian"), 1, delta=0.0, confidence=0.95)
    with pytest.raises(dpaudit.InputError, match="clip_norm: expected a finite number > 0, got 0"):
        federated_canary.message(KEY, SOUND.client, jnp.zeros(3), CLAIM, clip_norm=0)
    with pytest.raises(dpaudit.InputError, match="clients_per_round: expected a whole number >= 1, got 0"):
        federated_canary.accounted(1, noise_multiplier=1.0, clients_per_round=0, delta=DELTA)
    one = np.ones((1, 1))
    still = Canaries(np.full(1, np.nan), one, one, one)  # of a server that did not move: 0/0
    with pytest.raises(dpaudit.InputError, match="found: expected scores of a model that moved"):
        federated_canary.final_model(still, 1, delta=DELTA, confidence=0.95)
