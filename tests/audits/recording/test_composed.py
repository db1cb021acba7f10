"""Noise that decides, that is drawn until it suits, or that is part of several releases."""

import itertools

import numpy as np
import pytest

from dpaudit import Claim, record

X0 = np.array([0.2, 0.7, 0.4, 0.9])
X1 = np.array([0.2, 0.7, 0.4, 0.1])


def until_in_range(rng, x):
    while True:
        released = x.sum() + rng.laplace(0, 1)
        if -3 < released < 7:
            return released


def noise_until_small(rng, x):
    while True:
        noise = rng.laplace(0, 1)
        if abs(noise) < 3:  # what is left has bounded support, so no epsilon holds
            return x.sum() + noise


def refuses_far_values(rng, x):
    released = x.sum() + rng.laplace(0, 1)
    if abs(released) > 1e6:
        raise ValueError("this is no sum")
    return released


def one_noisy_threshold(rng, x):
    threshold = 2 + rng.laplace(0, 2)
    return [bool(value >= threshold) for value in (x.sum(), np.sum(x > 0.5), x.max(), x.min())]


def noises_that_cancel(rng, x):
    first, second = rng.laplace(0, 1), rng.laplace(0, 1)
    return x.sum() + first - second, x.sum() + second - first


def running_sum(rng, x):
    total, sums = 0, []
    for value in x:
        total = total + value + rng.laplace(0, 1)
        sums.append(total)
    return sums


def clipped_steps(rng, x):
    weights, rows = np.zeros(2), np.stack([x, 1 - x], 1)
    for _ in range(3):
        each = weights - rows
        each = each / np.maximum(1, np.linalg.norm(each, axis=1, keepdims=True))
        weights = weights - 0.1 * (each.sum(0) + rng.normal(0, 8, 2)) / 4
    return weights


def sorted_values(rng, x):
    return np.sort(x + rng.laplace(0, 1, 4))


def above_and_below(rng, x):
    noise = rng.laplace(0, 1)
    return x[0] + noise, x[0] - noise  # their sum is twice the value


def one_noise_for_a_histogram(rng, x):
    return x + rng.laplace(0, 2)


def a_negated_release(rng, x):
    released = x[0] + rng.laplace(0, 1)
    return released, -released, 3 - 2 * released


def answer_by_choice(rng, x):
    return rng.choice([x[0], 1 - x[0]], p=[0.75, 0.25])


def sample_by_choice(rng, x):
    return np.sum(x * rng.choice([0, 1], 2, p=[0.1, 0.9])) + rng.laplace(0, 1)


def seldom_bare(rng, x):
    return x[0] if rng.choice(2, p=[0.99, 0.01]) else 0.0


@pytest.mark.parametrize("fn", [until_in_range, noise_until_small, refuses_far_values])
def test_noise_far_out_ends_no_recording(fn):
    assert record(fn, X0, X1, claim=Claim(3.0), trials=0).verdict in ("consistent", "underpowered")


@pytest.mark.parametrize("fn", [noise_until_small, one_noisy_threshold, noises_that_cancel])
def test_replaying_does_not_absolve(fn):
    found = record(fn, X0, X1, claim=Claim(3.0), trials=0)
    assert found.verdict in ("underpowered", "fault"), str(found)


def test_one_noise_for_all_queries_of_a_sparse_vector_is_used_again():
    assert record(one_noisy_threshold, X0, X1, claim=Claim(1.0), trials=0).kinds == {"noise_reuse"}


@pytest.mark.parametrize("fn", [above_and_below, one_noise_for_a_histogram])
def test_one_noise_that_hides_changes_of_opposite_signs_is_used_again(fn):
    found = record(fn, np.array([3.0, 5.0]), np.array([4.0, 4.0]), claim=Claim(1.0), trials=0)
    assert found.verdict == "violation", str(found)
    assert "noise_reuse" in found.kinds


def test_a_release_may_be_returned_again_with_another_sign():
    found = record(a_negated_release, np.array([3.0]), np.array([4.0]), claim=Claim(1.0), trials=0)
    assert (found.verdict, found.epsilon, found.findings) == ("consistent", 1.0, ())


@pytest.mark.parametrize("fn", [answer_by_choice, sample_by_choice, seldom_bare])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_choice_of_fixed_probabilities_is_left_to_the_audit(fn, seed):
    found = record(fn, np.array([0.0, 1.0]), np.array([1.0, 1.0]), claim=Claim(0.95), trials=0, seed=seed)
    assert (found.verdict, found.findings) == ("underpowered", ()), str(found)
    assert "randomness is used other than as additive noise" in found.left[0]


def test_choices_without_replacement_are_bounded_above():
    """The shares of what is left depend on what was drawn: by all orders of two of four they spend log 24."""
    p, q = np.array([0.4, 0.4, 0.1, 0.1]), np.array([0.1, 0.1, 0.4, 0.4])
    orders = list(itertools.permutations(range(4), 2))
    spent = max(np.log(p[i] * p[j] * (1 - q[i]) / (q[i] * q[j] * (1 - p[i]))) for i, j in orders)
    assert spent == pytest.approx(np.log(24))

    def two_of_four(rng, x):
        return rng.choice(4, 2, False, x).tolist()

    found = record(two_of_four, p, q, claim=Claim(2.9), trials=0)
    assert (found.verdict, found.findings) == ("underpowered", ()), str(found)
    kept = record(two_of_four, p, q, claim=Claim(4.2), trials=0)
    assert kept.verdict == "consistent"
    assert kept.epsilon is not None
    assert spent <= kept.epsilon <= 3 * np.log(4) + 1e-9
    assert record(lambda rng, x: rng.choice(4, 2, p=x).tolist(), p, q, trials=0).epsilon == pytest.approx(np.log(16))


@pytest.mark.integration
def test_noises_that_cancel_are_found_by_the_audit():
    assert record(noises_that_cancel, X0, X1, claim=Claim(1.0), trials=2_000).verdict == "violation"


def test_a_sum_with_new_noise_for_every_value_is_not_accused():
    assert not record(running_sum, X0, X1, claim=Claim(1.0), trials=0).findings
    assert record(running_sum, X0, X1, claim=Claim(1.0), trials=1_000).verdict == "underpowered"  # sees a part of it


def test_steps_of_clipped_gradients_are_not_accused():
    found = record(clipped_steps, X0, X1, claim=Claim(2.0, 1e-5), trials=0)
    assert not found.findings, str(found)
    assert found.verdict == "underpowered"


def test_noisy_values_can_be_sorted():
    assert record(sorted_values, X0, X1, claim=Claim(1.0), trials=0).verdict == "consistent"
