"""Adapters on the real packages; skipped where they are not installed."""

import pytest

from dpaudit import Claim, InputError, record
from dpaudit.audits.recording import adapters


def test_diffprivlib():
    mechanisms = pytest.importorskip("diffprivlib.mechanisms")

    def release(x, sensitivity):
        return mechanisms.Laplace(epsilon=0.5, sensitivity=sensitivity).randomise(x)

    kept = record(lambda x: release(x, 2), 1.0, 3.0, claim=Claim(0.5), adapters=adapters.diffprivlib(), trials=0)
    broken = record(lambda x: release(x, 1), 1.0, 3.0, claim=Claim(0.5), adapters=adapters.diffprivlib(), trials=0)
    assert (kept.verdict, kept.epsilon) == ("consistent", pytest.approx(0.5)), str(kept)
    assert (broken.verdict, broken.kinds, broken.epsilon) == ("violation", {"sensitivity"}, pytest.approx(1.0))
    assert broken.noises[0].source == "diffprivlib.mechanisms.laplace:Laplace.randomise"

    def count(x):
        return mechanisms.Geometric(epsilon=0.5, sensitivity=1).randomise(x)

    assert record(count, 1, 2, claim=Claim(0.5), adapters=adapters.diffprivlib(), trials=0).verdict == "consistent"


def test_opendp():
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    laplace = dp.m.make_laplace(dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=2.0)

    def twice(x):
        return [laplace(x), laplace(2 * x)]

    kept, broken = (
        record(twice, 0.0, 1.0, claim=Claim(one), adapters=adapters.opendp(), trials=0) for one in (1.5, 1.4)
    )
    assert (kept.verdict, kept.epsilon) == ("consistent", pytest.approx(1.5)), str(kept)
    assert (broken.verdict, broken.kinds) == ("violation", {"budget"}), str(broken)


def test_opendp_s_gaussian_is_refused_rather_than_read_as_laplace():
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    gaussian = dp.m.make_gaussian(dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=1.0)
    with pytest.raises(InputError, match=r"^adapters.opendp: expected a measurement that states an epsilon, got Zero"):
        record(lambda x: gaussian(x), 0.0, 1.0, claim=Claim(1.0), adapters=adapters.opendp(), trials=0)
