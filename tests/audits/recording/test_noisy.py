"""Noisy arrays that are written to by other means than assignment, or through another array, are not followed."""

import numpy as np
import pytest

from dpaudit import Claim, record

X0, X1 = np.array([3.0, 5.0]), np.array([4.0, 4.0])


def added_at(released, x):
    np.add.at(released, [0], x[0])
    return released


def through_a_view(released, x):
    rows = released.view(np.ndarray)
    rows += x
    return released


def through_a_row(released, x):
    row = released[:1]
    row += x[:1]
    return released


def used_after(released, x):
    np.add.at(released, [0], x[0])
    return 2 * released + 1


@pytest.mark.parametrize("write", [added_at, through_a_view, through_a_row, used_after])
def test_data_that_is_added_to_a_release_in_place_is_found(write):
    """One noise hides the value, and the value once more is added to what was released."""
    found = record(lambda rng, x: write(x + rng.laplace(0, 1, 2), x), X0, X1, claim=Claim(2.0), trials=0)
    assert found.verdict == "fault", str(found)
    assert found.kinds == {"data_dependent_output"}


@pytest.mark.parametrize("x0, x1", [(np.zeros(2), X1), (X1, np.zeros(2))])
def test_data_that_changes_a_release_of_one_input_alone_is_found(x0, x1):
    """Zero, added in place, changes nothing, so that the noise of that run is followed to its end."""
    found = record(lambda rng, x: added_at(x + rng.laplace(0, 1, 2), x), x0, x1, claim=Claim(9.0), trials=0)
    assert found.kinds == {"data_dependent_output"}, str(found)


def sorted_in_place(released, x):
    released.sort()
    return released


def clipped_in_place(released, x):
    np.clip(released, 0, 1, out=released)
    return released


def zeroed(released, x):
    released.fill(0)
    return released


def halved_by_parts(released, x):
    released[:1] /= 2
    released[1] = released[1] / 2
    return released


@pytest.mark.parametrize("write", [sorted_in_place, clipped_in_place, zeroed, halved_by_parts])
def test_what_is_computed_in_place_of_a_release_alone_is_no_leak(write):
    found = record(lambda rng, x: write(x + rng.laplace(0, 1, 2), x), X0, X1, claim=Claim(2.0), trials=0)
    assert (found.verdict, found.findings) == ("consistent", ()), str(found)


def test_noise_that_is_changed_in_place_before_it_is_added_is_left_to_the_audit():
    def of_sorted_noise(rng, x):
        noise = rng.laplace(0, 1, 5)
        noise.sort()
        return x + noise

    found = record(of_sorted_noise, np.zeros(5), np.full(5, 0.2), claim=Claim(2.0), trials=0)
    assert (found.verdict, found.findings) == ("underpowered", ()), str(found)
