"""The drawn trade-off curve: what of the measured band is below the promise, and nothing else, is dark."""

import numpy as np
from scipy.stats import norm

from dpaudit.audits.ldp_client import CRAFTS
from dpaudit.report import tradeoff_figure
from tests.report.samples import row


def test_the_measured_band_holds_the_true_curve_and_only_a_fault_is_shaded():
    """A Gaussian of mu 1, measured by boxes around its own points."""
    at = np.linspace(-2, 3, 12)
    fpr, fnr = norm.sf(at), norm.cdf(at - 1)
    wide = {"fpr_low": fpr - 0.01, "fpr_high": fpr + 0.01, "fnr_low": fnr - 0.01, "fnr_high": fnr + 0.01}
    curve = {f"band_{name}": np.clip(one, 0, 1).tolist() for name, one in wide.items()}
    curve |= {"fpr_low": [0, 0.15, 1], "fpr_high": [0, 0.17, 1], "fnr_low": [1, 0.49, 0], "fnr_high": [1, 0.51, 0]}
    low, high = tradeoff_figure.edges(curve)
    true = norm.cdf(norm.isf(tradeoff_figure.GRID) - 1)
    assert (low <= true + 1e-9).all()
    assert (high >= true - 1e-9).all()
    assert (high - low).mean() < 0.15
    assert (np.diff(high, 2) > -1e-9).all()  # convex
    for mu, broken in ((1.1, False), (0.5, True)):
        claimed = norm.cdf(norm.isf(tradeoff_figure.GRID) - mu)
        given = curve | {"claimed_fpr": tradeoff_figure.GRID.tolist(), "claimed_fnr": claimed.tolist()}
        axes = tradeoff_figure.tradeoff_figure(given).axes[0]
        dark = next(one for one in axes.collections if one.get_label() == "violation")
        assert bool(dark.get_paths() and any(len(path.vertices) > 3 for path in dark.get_paths())) == broken


def test_all_settings_of_a_page_differ_in_colour_and_shape():
    """The seventh and eighth had those of the first two."""
    settings = [(row(craft=craft), (0.4, 0.1)) for craft in CRAFTS]
    lines = tradeoff_figure.attained_figure(settings).axes[0].lines
    dots = [(line.get_color(), line.get_marker()) for line in lines if line.get_marker() not in ("None", "D")]
    colours, shapes = (set(of) for of in zip(*dots, strict=True))
    assert len(dots) == len(colours) == len(shapes) == len(CRAFTS)
