"""What is drawn, in the coordinates of the data."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpaudit._validate import InputError
from dpaudit.report import figures
from dpaudit.report.figures import guess_figure, save_png, setting_figure, summary_figure, to_svg
from dpaudit.report.tradeoff_figure import attained_figure
from tests.report.samples import computed, grid, row


def of(rows, dataset):
    return [row for row in rows if row["dataset"] == dataset]


def lines(axes) -> dict:
    """Drawn lines by label, as [n, 2] coordinates."""
    return {line.get_label(): np.column_stack(line.get_data()).tolist() for line in axes.lines}


def error_bars(axes) -> dict:
    """Error bars by label: the ends of each bar."""
    return {bars.get_label(): [part.tolist() for part in bars.lines[2][0].get_segments()] for bars in axes.containers}


def test_setting_figure_draws_promise_exact_measured_and_optimal():
    (axes,) = setting_figure(grid(), "benign").axes
    drawn = lines(axes)
    assert drawn["promised"] == [[0, 0], [4, 4]]
    for dataset in ("digits", "cifar10 (JPEG)"):
        assert drawn[f"{dataset}: exact"] == [[1, 0.26], [4, 1.04]]
        assert drawn[f"{dataset}: optimal test"] == [[1, 1], [4, 4]]
        np.testing.assert_allclose(
            error_bars(axes)[f"{dataset}: measured"], [[[1, 1 / 5], [1, 1 / 3]], [[4, 4 / 5], [4, 4 / 3]]]
        )
    texts = [text.get_text() for text in axes.texts]
    assert sorted(texts) == ["cifar10 (JPEG)", "digits", "promised"]


def test_labels_at_the_same_height_are_moved_apart():
    (axes,) = setting_figure(grid(), "dummy").axes
    heights = sorted(text.xy[1] for text in axes.texts)
    assert np.diff(heights).min() > 0.2


def test_infinite_bounds_leave_the_figure():
    rows = [row(epsilon_hat="inf", epsilon_hat_std=None, epsilon_upper="inf")]
    (axes,) = setting_figure(rows, "benign").axes
    ((_, bottom), (_, top)) = error_bars(axes)["digits: measured"][0]
    assert bottom == pytest.approx(1.01)
    assert top > axes.get_ylim()[1]
    assert np.isfinite(axes.get_ylim()).all()
    assert "svg" in to_svg(summary_figure(rows), "a", "b")


def test_a_mean_over_repeats_outside_its_pooled_bounds_has_no_bar_on_that_side():
    for mean, ends in ((0.9, [0.9, 1.05]), (1.2, [1.01, 1.2])):
        rows = [row(epsilon_hat=mean)]
        (axes,) = setting_figure(rows, "benign").axes
        np.testing.assert_allclose(error_bars(axes)["digits: measured"], [[[4, end] for end in ends]])
        assert "svg" in to_svg(summary_figure(rows), "a", "b")


def test_computed_rows_have_no_measured_dots():
    (axes,) = setting_figure([computed()], "benign").axes
    assert axes.containers == []
    assert lines(axes)["digits: exact"] == [[4, 1.028]]


def test_summary_figure_has_a_panel_for_every_promise():
    figure = summary_figure(of(grid(), "digits"))
    assert [axes.get_title() for axes in figure.axes] == ["promised ε = 1", "promised ε = 4"]
    for epsilon, axes in zip((1, 4), figure.axes, strict=True):
        assert [x for x, _ in lines(axes)["promised"]] == [epsilon, epsilon]
        assert error_bars(axes)["dummy"] == [[[pytest.approx(0.98 * epsilon), 1], [pytest.approx(1.03 * epsilon), 1]]]
        assert error_bars(axes)["benign"] == [[[pytest.approx(epsilon / 5), 0], [pytest.approx(epsilon / 3), 0]]]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["benign", "dummy"]


def test_what_promises_allow_is_written_side_by_side():
    """Those of 4 and 8, at most 98 and 100, were written over each other."""
    figure = guess_figure([row(), row(epsilon=8.0)])
    figure.draw_without_rendering()
    first, second = (text.get_window_extent() for text in figure.axes[0].texts if "at most" in text.get_text())
    assert first.x1 < second.x0
    assert second.x1 <= figure.bbox.x1


def test_guess_figure_lies_between_coin_toss_and_worst_case():
    (axes,) = guess_figure(of(grid(), "digits")).axes
    drawn = lines(axes)
    assert drawn["benign 4"] == [[pytest.approx(73.605), 0]]
    assert drawn["dummy 1"] == [[pytest.approx(73.202), 1]]
    verticals = sorted(line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2)
    np.testing.assert_allclose(verticals, [50, 100 * np.e / (1 + np.e), 100 / (1 + np.exp(-4))])
    texts = [text.get_text() for text in axes.texts]
    assert {"74", "61", "98", "73", "coin toss\n50", "ε = 1\nat most 73", "ε = 4\nat most 98"} == set(texts)


@pytest.mark.parametrize("above", [False, True])
def test_labels_of_guesses_meet_no_line(monkeypatch, above):
    """With each label above its dot, as a twin, some lie on the lines of promises."""
    if above:
        monkeypatch.setattr(figures, "_clear", lambda *_: ((0, 6), "center", "bottom"))
    figure = guess_figure(of(grid(), "digits"))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    verticals = [line.get_window_extent() for line in axes.lines if len(line.get_xdata()) == 2]
    labels = [text.get_window_extent() for text in axes.texts if text.get_text().isdigit()]
    met = sum(label.x0 < line.x0 < label.x1 for label in labels for line in verticals)
    assert len(labels) == 4
    assert (met > 0) == above


def test_attained_figure_draws_the_promise_and_what_is_attained():
    told, nothing = (0.5, 0.01), (float("nan"), float("nan"))
    (axes,) = attained_figure([(row(fpr=0.2, fnr=0.3), told), (row(craft="dummy", fpr=0.1, fnr=0.1), nothing)]).axes
    drawn, corner = lines(axes), 1 / (1 + np.exp(4))
    np.testing.assert_allclose(drawn["promised"], [[0, 1], [corner, corner], [1, 0]])
    assert drawn["benign"] == [[0, 1], [0.01, 0.5], [0.2, 0.3], [1, 0]]
    assert drawn["dummy"] == [[0, 1], [0.1, 0.1], [1, 0]]


def test_what_is_attained_is_convex():
    (axes,) = attained_figure([(row(fpr=0.6, fnr=0.6), (0.5, 0.01))]).axes
    assert lines(axes)["benign"] == [[0, 1], [0.01, 0.5], [1, 0]]  # worse than a coin between the others


def test_one_data_set_at_a_time_and_settings_that_exist():
    with pytest.raises(InputError, match=r"rows: expected those of one data set, got digits, cifar10 \(JPEG\)"):
        summary_figure(grid())
    with pytest.raises(InputError, match="rows: expected those of one data set, got none"):
        guess_figure([])
    with pytest.raises(InputError, match="craft: expected a setting that occurs in the rows, got watermark"):
        setting_figure(grid(), "watermark")


def test_svg_is_reproducible_self_contained_and_keeps_identifiers_apart():
    first, again, other = (to_svg(setting_figure(grid(), "benign"), name, 'a "b"') for name in ("one", "one", "two"))
    assert first == again
    assert first.startswith('<svg role="img" aria-label="a &quot;b&quot;"')
    assert "http" not in first
    assert "benign" in first.lower()
    identifiers = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, other)]
    assert not identifiers[0] & identifiers[1]
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', first)) <= identifiers[0]


def test_png_is_reproducible(tmp_path):
    for name in ("a.png", "b.png"):
        save_png(guess_figure(of(grid(), "digits")), tmp_path / name)
    content = (tmp_path / "a.png").read_bytes()
    assert content[:4] == b"\x89PNG"
    assert content == (tmp_path / "b.png").read_bytes()


def test_a_user_without_a_home_gets_a_folder_for_matplotlib(monkeypatch, tmp_path):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    figures._give_matplotlib_a_folder()
    assert Path(os.environ["MPLCONFIGDIR"]).is_dir()
    monkeypatch.delenv("MPLCONFIGDIR")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)  # the twin has one
    figures._give_matplotlib_a_folder()
    assert "MPLCONFIGDIR" not in os.environ


@pytest.mark.integration
def test_matplotlib_is_not_imported_before_a_figure_is_drawn():
    code = "import sys, dpaudit, dpaudit.report.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
