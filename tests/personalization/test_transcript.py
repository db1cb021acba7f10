"""The accountant: exact for Gaussians, never short of a release, and of nothing but the transcript."""

from functools import partial

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpaudit import _validate
from dpaudit._validate import InputError
from dpaudit.personalization.boundary import processes
from dpaudit.personalization.boundary.transcript import Transcript, without_values
from dpaudit.training import dp_ftrl, matrix_noise
from dpaudit.training.sampling import participation


@partial(jax.jit, static_argnums=(0, 1))
def _told(rounds, released, memory, key):
    def round(memory, key):
        pairs = [
            process.release(key, jnp.ones(2), own, sensitivity=1.0)
            for process, own in zip(released, memory, strict=True)
        ]
        made, after = zip(*pairs, strict=True)
        return after, made

    return jax.lax.scan(round, memory, jax.random.split(key, rounds))


def told(rounds, *released, before=None, key=7):
    """(transcript, memory) of rounds in which each of the processes releases two ones, all with the round's key."""
    start = tuple(process.init(np.zeros(2, np.float32)) for process in released) if before is None else before
    after, part = _told(rounds, released, start, jax.random.key(key))
    return Transcript((part,)), after


A = processes.gaussian("a", noise_multiplier=2.0)
B = processes.gaussian("b", noise_multiplier=1.5)


def test_gaussians_compose_exactly():
    transcript = told(5, A)[0] + told(3, B)[0]
    squared = 5 / 2.0**2 + 3 / 1.5**2
    assert transcript.mu() == pytest.approx(np.sqrt(squared), rel=1e-12)
    exact = transcript.epsilon(1e-5)
    assert exact == pytest.approx(dp_accounting.get_epsilon_gaussian(squared**-0.5, 1e-5), rel=1e-9)
    by_pld = PLDAccountant().compose(transcript.event()).get_epsilon(1e-5)  # another algorithm, rounding upward
    assert exact <= by_pld <= 1.001 * exact


@pytest.mark.integration
def test_secret_samples_are_accounted_by_privacy_loss_distributions():
    sampled = processes.poisson_gaussian("sampled", rate=0.1, noise_multiplier=1.0)
    transcript = told(20, sampled, A)[0]
    epsilon = transcript.epsilon(1e-5)
    renyi = RdpAccountant().compose(transcript.event()).get_epsilon(1e-5)
    assert 0.8 * renyi < epsilon < renyi
    assert epsilon > dp_accounting.get_epsilon_gaussian(2.0 / np.sqrt(20), 1e-5)
    with pytest.raises(InputError, match="transcript: expected only Gaussian events, which have a mu"):
        transcript.mu()


def test_correlated_noise_costs_what_its_first_rounds_do():
    strategy = matrix_noise.banded(participation(12, separation=4), bands=4)
    process = processes.correlated("ftrl", strategy, 1.5)
    transcript, after = told(12, process)
    assert transcript.epsilon(1e-6) == pytest.approx(dp_ftrl.epsilon(strategy, 1.5, delta=1e-6), rel=1e-9)
    first, between = told(7, process)
    spent = dp_ftrl.epsilon(strategy, 1.5, delta=1e-6, participation=participation(7, separation=4))
    assert first.epsilon(1e-6) == pytest.approx(spent, rel=1e-9)
    assert spent < transcript.epsilon(1e-6)
    rest = told(5, process, before=between)[0]
    assert (first + rest).mu() == pytest.approx(1 / 1.5, rel=1e-9)
    past = told(1, process, before=after)[0]
    assert np.isnan(past.values("ftrl")).all()
    with pytest.raises(InputError, match="ftrl: expected at most the 12 releases of its strategy, got 13"):
        (transcript + past).event()


def test_noise_that_begins_anew_is_paid_anew():
    strategy = matrix_noise.toeplitz(participation(12, separation=12))
    process = processes.correlated("ftrl", strategy, 1.5)
    first, anew = told(6, process)[0], told(6, process, key=8)[0]
    assert (first + anew).mu() == pytest.approx(np.sqrt(2) * first.mu(), rel=1e-12)
    assert (first + anew).mu() > 1.01 / 1.5  # what twelve releases of one sequence cost


@pytest.mark.integration
def test_one_draw_is_not_accounted_twice():
    """Noise is a function of the key, the name and the number: whoever repeats all three is refused, no one else."""
    first, between = told(3, A)
    assert len({tuple(draw) for draw in told(3, A, B)[0].draws()}) == 6
    wanted = "transcript: expected new noise for every release: .* the same noise in {} and {}"
    with pytest.raises(InputError, match=wanted.format("'a' number 0", "'a' number 0")):
        (first + told(3, A)[0]).epsilon(1e-5)
    cheaper = processes.gaussian("a", noise_multiplier=200.0)  # another process, but the name and the noise are a's
    with pytest.raises(InputError, match=wanted.format("'a' number 0", "'a' number 0")):
        (first + told(1, cheaper)[0]).mu()
    goes_on = told(3, A, before=between)[0]
    assert (first + goes_on + told(3, B)[0]).mu() == pytest.approx(np.sqrt(6 / 4 + 3 / 1.5**2), rel=1e-12)
    assert not np.array_equal(first.values("a"), goes_on.values("a"))


def test_runs_that_were_mapped_may_share_draws_and_rounds_of_one_may_not():
    """The same key in two worlds is how audits look at a run; each world is accounted by itself."""
    start = A.init(jnp.zeros(2))

    def both(keys):
        def one(world):
            def round(memory, key):
                release, memory = A.release(key, world * jnp.ones(2), memory, sensitivity=1.0)
                return memory, (release,)

            return jax.lax.scan(round, start, keys)[1]

        return Transcript((jax.vmap(one)(jnp.arange(2.0)),))

    told_twice = both(jax.random.split(jax.random.key(0), 3))
    assert told_twice.draws().shape == (2, 3, 4)
    assert told_twice.mu() == pytest.approx(np.sqrt(3) / 2, rel=1e-12)
    later = both(jax.random.split(jax.random.key(1), 3))
    assert (told_twice + later).draws().shape == (2, 6, 4)
    with pytest.raises(InputError, match="the same noise in 'a' number 0 and 'a' number 0"):
        (told_twice + later + told_twice).event()


def test_releases_that_are_missing_or_twice_are_refused():
    first, between = told(3, A)
    second, later = told(2, A, before=between)
    third = told(2, A, before=later)[0]
    assert (first + second + third).mu() == pytest.approx(np.sqrt(7) / 2, rel=1e-12)
    for wrong, number in ((first + third, "number 5 after 3"), (first + second + second, "number 3 after 5"),
                          (second, "number 3 after 0")):  # fmt: skip
        with pytest.raises(InputError, match=f"releases 0, 1, 2, ... of one process 'a', .*got {number} of them"):
            wrong.epsilon(1e-5)
    cheaper = processes.gaussian("a", noise_multiplier=200.0)  # goes on under another's name
    again = processes.gaussian("a", noise_multiplier=2.0)  # the same one, made again as after a restart
    for other in (cheaper, again):
        message = "^transcript: expected releases of one process 'a', the same object in all .*got number 3 of another"
        with pytest.raises(InputError, match=message):
            (first + told(2, other, before=between)[0]).event()


def test_values_are_found_by_name():
    transcript = told(3, A, B)[0] + told(2, B)[0]
    assert transcript.values("b").shape == (5, 2)
    np.testing.assert_array_equal(transcript.values("a"), transcript.parts[0][0].value)
    with pytest.raises(InputError, match="name: expected one of a, b, got c"):
        transcript.values("c")
    assert Transcript(()).epsilon(1e-5) == 0
    with pytest.raises(InputError, match=r"delta: expected a number in \(0, 1\), got 0"):
        transcript.epsilon(0)


def test_a_delta_above_one_over_the_number_of_users_is_warned_of():
    transcript, _ = told(3, A)
    message = "^delta: expected at most 1/1000000, one over the number of users, got 1e-05: .* would keep it$"
    with pytest.warns(_validate.InputWarning, match=message):
        spent = transcript.epsilon(1e-5, users=1_000_000)
    assert spent == transcript.epsilon(1e-5) == transcript.epsilon(1e-5, users=100_000)
    with pytest.raises(InputError, match=r"^users: expected a whole number >= 1, got 0$"):
        transcript.epsilon(1e-5, users=0)


@pytest.mark.integration
def test_the_claim_is_the_curve_through_every_epsilon():
    sampled = processes.poisson_gaussian("sampled", rate=0.1, noise_multiplier=1.0)
    for transcript in (told(5, A)[0] + told(3, B)[0], told(20, sampled, A)[0]):
        promised = transcript.claim()
        assert promised.neighbouring == "add_remove"
        for delta in (1e-2, 1e-6):
            assert promised.epsilon_at(delta) == pytest.approx(transcript.epsilon(delta), rel=3e-3)
    with pytest.raises(InputError, match="transcript: expected releases, all of them with noise, got mu inf"):
        told(2, processes.gaussian("bare", noise_multiplier=0.0))[0].claim()
    with pytest.raises(InputError, match="got mu 0"):
        Transcript(()).claim()


def test_without_its_values_a_transcript_costs_the_same_and_no_device_is_played():
    played = []

    def run(key):
        def device(words):
            played.append(words)
            return np.ones(2, np.float32)

        total = jax.pure_callback(device, jnp.zeros(2), jax.random.bits(key, (2,)))
        release, _ = A.release(key, total, A.init(jnp.zeros(2)), sensitivity=1.0)
        return Transcript(((jax.tree.map(lambda leaf: leaf[None], release),),))

    key = jax.random.key(4)
    bare = without_values(run, key)
    assert not played
    whole = jax.block_until_ready(run(key))
    assert played
    assert bare.parts[0][0].value is None
    np.testing.assert_array_equal(bare.draws(), whole.draws())
    assert bare.claim() == whole.claim()
    with pytest.raises(InputError, match="new noise for every release"):
        (bare + bare).event()
