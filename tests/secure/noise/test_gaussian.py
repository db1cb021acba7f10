import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpaudit import _validate
from dpaudit.secure.noise import gaussian


@pytest.mark.parametrize(
    ("wanted", "replace", "add_remove"), [(0.5, 0.634, 0.277), (2.0, 3.37, 1.449), (8.0, 21.3, 8.179)]
)
def test_what_the_papers_noise_really_spends(wanted: float, replace: float, add_remove: float) -> None:
    multiplier = gaussian.classical(epsilon=wanted, delta=1e-3)
    np.testing.assert_allclose(multiplier, math.sqrt(2 * math.log(1250)) / wanted)
    assert gaussian.epsilon(multiplier, delta=1e-3, neighbouring="replace") == pytest.approx(replace, rel=2e-3)
    assert gaussian.epsilon(multiplier, delta=1e-3, neighbouring="add_remove") == pytest.approx(add_remove, rel=2e-3)


@pytest.mark.parametrize("neighbouring", ["replace", "add_remove"])
@pytest.mark.parametrize("wanted", [0.01, 0.5, 8.0])
def test_analytic_noise_spends_what_is_wanted(wanted: float, neighbouring: str) -> None:
    multiplier = gaussian.analytic(epsilon=wanted, delta=1e-3, neighbouring=neighbouring)
    assert gaussian.epsilon(multiplier, delta=1e-3, neighbouring=neighbouring) == pytest.approx(wanted, rel=1e-6)


def test_composed_epsilon_against_the_integral() -> None:
    """Integrates max(0, p - e^epsilon q) over the direction of the likelihood ratio, by quadrature, for delta."""
    spent = gaussian.epsilon(5.0, delta=1e-3, neighbouring="replace", steps=9)
    distance = 2 * 3 / 5.0  # nine independent releases, each 2/5 standard deviations apart

    def gain(z: float) -> float:
        return max(0.0, float(stats.norm.pdf(z, distance) - math.exp(spent) * stats.norm.pdf(z)))

    assert integrate.quad(gain, -2, 12, limit=200)[0] == pytest.approx(1e-3, rel=1e-4)
    assert spent > gaussian.epsilon(5.0, delta=1e-3, neighbouring="replace", steps=8)


def test_refusals() -> None:
    with pytest.raises(_validate.InputError, match="neighbouring: expected one of replace, add_remove, got swap"):
        gaussian.analytic(epsilon=1.0, delta=1e-3, neighbouring="swap")
    with pytest.raises(_validate.InputError, match=r"delta: expected a number in \(0, 1\), got 0"):
        gaussian.classical(epsilon=1.0, delta=0)
    with pytest.raises(_validate.InputError, match="steps: expected a whole number >= 1, got 0"):
        gaussian.epsilon(1.0, delta=1e-3, neighbouring="replace", steps=0)
