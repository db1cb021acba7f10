"""Renders the picture of the randomizer on the client's page, Fig. 2 of paper 000, with sliders for angle and norm.

An inline script, which the page's content policy allows by its hash, redraws the picture when a slider moves; no other
script may run, and nothing may be fetched. Without scripts the picture shows a right angle and the full norm, and no
sliders.
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from dpaudit.audits import oracle
from dpaudit.report import words

DEGREES, NORM = 90.0, 1.0  # the initial state of the picture
RADIUS = 100.0

TEXT = """<h2>What the randomizer does to an update</h2>
<p>Both candidates are drawn as arrows in a circle whose radius is the largest norm allowed, L; a longer update is
shortened to L. What is sent is a direction drawn at random: with a high probability from the half of the circle that
the candidate points to, otherwise from the other half. The half of g0 is green: the stronger the colour, the more
likely. An update shorter than L is first reversed at random, the more often the shorter it is. <span
class="moving">Move the sliders to see how angle and norm change what an observer learns.</span></p>"""

SCRIPT = """
"use strict";
for (const box of document.querySelectorAll(".randomizer")) {
  const at = (name) => box.querySelector(`[data-part="${name}"]`);
  const losses = box.dataset.epsilons.split(" ").map(Number);
  const point = (turn, length) => [100 * length * Math.sin(turn), -100 * length * Math.cos(turn)];
  const draw = () => {
    const degrees = Number(at("angle").value), norm = Number(at("norm").value);
    const epsilon = losses[Number(at("epsilon").value)];
    const theta = degrees * Math.PI / 180, length = Math.min(norm, 1);
    const far = (1 - length) / 2 + length / (1 + Math.exp(epsilon)), near = 1 - far;
    const right = degrees === 0 ? 0.5 : (near * (Math.PI + theta) + far * (Math.PI - theta)) / (2 * Math.PI);
    for (const [name, turn] of [["g0", -theta / 2], ["g1", theta / 2]]) {
      const [x, y] = point(turn, length);
      at(name).setAttribute("x2", x.toFixed(2));
      at(name).setAttribute("y2", y.toFixed(2));
      const [u, v] = point(turn, length + 0.14);
      at(name + "-name").setAttribute("x", u.toFixed(2));
      at(name + "-name").setAttribute("y", v.toFixed(2));
    }
    at("half").setAttribute("transform", `rotate(${(-degrees / 2).toFixed(2)})`);
    at("half").setAttribute("fill-opacity", (near * near).toFixed(3));
    at("angle-said").textContent = degrees.toFixed(0) + "°";
    at("norm-said").textContent = norm.toFixed(2) + " L";
    at("epsilon-said").textContent = String(epsilon);
    at("right").textContent = Math.floor(100 * right + 0.5);
    at("most").textContent = Math.floor(100 / (1 + Math.exp(-epsilon)) + 0.5);
    at("telling").textContent = Math.floor(100 * theta / Math.PI + 0.5);
    const ratio = near / far, whole = Math.round(ratio).toLocaleString("en");
    at("ratio").textContent = ratio >= 1e6 ? "more than a million" : ratio >= 100 ? whole : ratio.toFixed(1);
  };
  box.addEventListener("input", draw);
  draw();
}
"""

HEAD = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'\">"
    "<noscript><style>.moving, .randomizer input { display: none; }</style></noscript>"
)


class Told(NamedTuple):
    """The numbers that are shown for one position of the sliders.

    Attributes:
      near: Q, the probability that the release lies on the side of its candidate.
      right: the probability of a right guess by the cosine rule, Eq. (3).
      telling: the probability of a release on the near side of one candidate and the far side of the other.
      ratio: how much likelier such a release is under the candidate that it points to, Q / (1 - Q).
    """

    near: float
    right: float
    telling: float
    ratio: float


def told(degrees: float, norm: float, epsilon: float) -> Told:
    """Computes what the page's script shows for two candidates of norm ``norm`` times L at an angle."""
    theta = math.radians(degrees)
    pair = oracle.Pair(np.asarray(norm), np.asarray(norm), np.asarray(theta))
    far = float(oracle.far_sides(pair, epsilon=epsilon, clip_norm=1.0)[0])
    fpr, fnr = oracle.cosine_rates(pair, epsilon=epsilon, clip_norm=1.0)
    return Told(1 - far, float(1 - (fpr + fnr) / 2), theta / math.pi, (1 - far) / far if far else math.inf)


def render(epsilons: Sequence[float]) -> str:
    """Renders the picture with its sliders, initially at the last of the promises ``epsilons``, given in rising
    order."""
    epsilon, last = epsilons[-1], len(epsilons) - 1
    shown = told(DEGREES, NORM, epsilon)
    sliders = [
        _slider("angle", "Angle between the candidates", 0, 180, 1, DEGREES, f"{DEGREES:.0f}°"),
        _slider("norm", "Norm of each", 0, 1.5, 0.01, NORM, f"{NORM:.2f} L"),
        _slider("epsilon", "Promise ε", 0, last, 1, last, f"{epsilon:g}"),
    ]
    ratio = words.likelier(shown.ratio, ".1f")
    sentence = (
        f'The everyday guess is right <b data-part="right">{words.of_100(shown.right)}</b> times out of 100, where '
        f'the promise allows <b data-part="most">{words.of_100(words.worst_case(epsilon))}</b>. '
        f'<b data-part="telling">{words.of_100(shown.telling)}</b> of 100 messages are telling: they point towards '
        f'one candidate and away from the other, and are <b data-part="ratio">{ratio}</b> times as likely '
        "from the one as from the other."
    )
    listed = escape(" ".join(f"{loss:g}" for loss in epsilons))
    return (
        f'{TEXT}<div class="randomizer" data-epsilons="{listed}">{_picture(shown)}'
        f"<div>{''.join(sliders)}</div><p>{sentence}</p></div><script>{SCRIPT}</script>"
    )


def _slider(name: str, label: str, low: float, high: float, step: float, value: float, said: str) -> str:
    hidden = " hidden" if low == high else ""
    return (
        f'<label{hidden}>{label}: <output data-part="{name}-said">{escape(said)}</output>'
        f'<input type="range" data-part="{name}" min="{low:g}" max="{high:g}" step="{step:g}" value="{value:g}">'
        "</label>"
    )


def _picture(shown: Told) -> str:
    """Draws the circle of directions, with the candidates at equal angles to either side of the vertical line."""
    turn = math.radians(DEGREES / 2)
    arrows = []
    for name, side in (("g0", -1), ("g1", 1)):
        x, y = (side * math.sin(turn), -math.cos(turn))
        arrows.append(
            f'<line class="arrow" data-part="{name}" x1="0" y1="0" x2="{RADIUS * x:.2f}" y2="{RADIUS * y:.2f}"/>'
            f'<text data-part="{name}-name" x="{1.14 * RADIUS * x:.2f}" y="{1.14 * RADIUS * y:.2f}">{name}</text>'
        )
    half = f"M {-RADIUS:g} 0 A {RADIUS:g} {RADIUS:g} 0 0 1 {RADIUS:g} 0 Z"
    return (
        '<svg viewBox="-135 -125 270 250" role="img" aria-label="The circle of directions with both candidates">'
        f'<circle class="rim" r="{RADIUS:g}"/><path class="near" data-part="half" d="{half}" '
        f'transform="rotate({-DEGREES / 2:g})" fill-opacity="{shown.near**2:.3f}"/>'
        f'<line class="equal" x1="0" y1="-{RADIUS:g}" x2="0" y2="{RADIUS:g}"/>{"".join(arrows)}'
        '<text class="side" x="-70" y="118">guess g0</text><text class="side" x="70" y="118">guess g1</text></svg>'
    )
