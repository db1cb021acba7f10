"""Whole fits beside an earlier version: fits that stand still are counted, and the page says what its rows say."""

import subprocess

import numpy as np
import pytest

from experiments.common import HERE, Rows
from experiments.paper004 import page_fits, scale
from experiments.paper004.scale import Fitted


def compared(tmp_path, monkeypatch, seconds, rank=16):
    """Rows of three turns; ``seconds`` has those of the version before and of ours, None for a fit that is ended."""
    took = {side: iter([1.0, *values]) for side, values in seconds.items()}  # the first is the fit without noise

    def fitted(folder, file, limit=0.0):
        assert file.exists()
        found = next(took["ours" if folder == HERE.parent else "before"])
        if found is None:
            raise subprocess.TimeoutExpired("fit", limit)
        return Fitted(found, 0.5, np.zeros(2))

    monkeypatch.setattr(scale, "fitted", fitted)
    monkeypatch.setattr(scale, "comparison", lambda *_: {"before": "ccce386", "users": 30, "rank": rank})
    rows = Rows("004", "personalization_scale", str(tmp_path), 0)
    scale.beside(rows, tmp_path, 30, 20, 3, rank, 9.0)
    return rows.rows


def test_fits_that_stand_still_are_counted_and_leave_no_seconds(tmp_path, monkeypatch):
    before, ours, ratio = compared(tmp_path, monkeypatch, {"before": [None, 8.0, 6.0], "ours": [2.0, 2.0, 3.0]})
    assert (before["ours"], before["setting"]["ended"]) == (7.0, 1)
    assert (ours["ours"], ours["setting"]["ended"]) == (2.0, 0)
    # of the turns in which both ended
    assert (ratio["ours"], ratio["setting"]["turns"], ratio["setting"]["apart"]) == (
        3.0,
        2,
        0.0,
    )


def test_a_version_of_which_no_fit_ends_has_no_ratio(tmp_path, monkeypatch):
    before, ours, ratio = compared(tmp_path, monkeypatch, {"before": [None] * 3, "ours": [2.0] * 3})
    assert before["ours"] is ratio["ours"] is None
    assert before["setting"]["ended"] == 3
    assert ours["ours"] == 2.0


@pytest.mark.parametrize(("seconds", "holds"), [((2.0, 2.0), True), ((2.0, 2.5), False), ((2.0, None), False)])
def test_the_page_tells_when_fits_in_turn_are_slower_or_stand_still(tmp_path, monkeypatch, seconds, holds):
    stood = compared(tmp_path / "stood", monkeypatch, {"before": [None] * 3, "ours": [2.0] * 3})
    before, ours = seconds
    both = compared(tmp_path / "both", monkeypatch, {"before": [before] * 3, "ours": [before, ours, ours]}, rank=4)
    assert page_fits.fits_in_turn(stood + both).holds == holds


def test_memory_that_grows_faster_than_users_is_not_told(monkeypatch):
    def rows(high):
        setting = {"users": [1, 2], "gib": [0.5, 0.75]}
        return [{"quantity": "memory exponent", "setting": setting, "ours": 0.3, "ours_low": 0.2, "ours_high": high}]

    assert page_fits.fits_memory(rows(0.4)).holds
    assert not page_fits.fits_memory(rows(1.2)).holds
