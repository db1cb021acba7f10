"""Says in words what is true of one randomizer alone: LDP-SGD, Gaussian noise or PrivUnit."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from dpaudit import _validate
from dpaudit.mechanisms.privunit import best_cap
from dpaudit.report import page_randomizer, page_telling, words

Rows = Sequence[dict[str, Any]]

QUIET = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
NOISE = """<h2>What the randomizer does to an update</h2>
<p>An update that is longer than the largest norm allowed, L = {clip_norm}, is shortened to L. Then a random number is
added to each of its numbers, drawn from a bell curve around zero. Any two updates are then at most 2 L apart, and the
width of the curve (its standard deviation) is made for that distance: {widths}. The noise promises more than ε and δ
do: while it is that wide, the observer's mistakes lie on or above the dotted line in the figure below, and that is
what is tested.</p>"""
CAP = """<h2>What the randomizer does to an update</h2>
<p>Only a direction is sent, whatever the length of the update. Around the direction of your update lies a
<em>cap</em>: all directions that are close to it. What is sent is drawn at random from the cap more often than chance
would have it, otherwise from outside of it. {caps}</p>"""


class Kind(NamedTuple):
    """What tables and pages say of one randomizer.

    Attributes:
      name: in titles.
      clips: whether the clip norm matters.
      opening: continues the page's opening paragraph.
      picture: renders what the randomizer does to an update, from rows.
      head: of the page.
      telling_text, telling: the introduction to messages that tell more than others, and the rest from rows.
      diamond: how an observer attains the diamond in the figure of mistakes, and the dot.
      fault: the faults of which ``detectable`` speaks, found by the optimal test; empty for a perfect attack.
      reading: continues the sentence on a violation.
      method: entries of the engineers' method that differ, by name.
    """

    name: str
    clips: bool
    opening: str
    picture: Callable[[Rows], str]
    head: str
    telling_text: str
    telling: Callable[[Rows], str]
    diamond: str
    fault: str
    reading: str
    method: dict[str, str]


def kind_of(rows: Iterable[dict[str, Any]]) -> Kind:
    """Returns the words for the randomizer of these rows.

    Raises:
      InputError: rows of several randomizers.
    """
    names = list(dict.fromkeys(row.get("mechanism", "ldp_sgd") for row in rows))
    if len(names) != 1:
        raise _validate.expected("rows", "those of one randomizer", ", ".join(names) or "none")
    return KINDS[_validate.one_of(KINDS, mechanism=names[0])]


def _each(rows: Rows, field: str) -> str:
    """Lists a number for each promise: ``10.1 (ε = 0.5), 5.2 (ε = 1)``."""
    found = {row["epsilon"]: row[field] for row in rows}
    return ", ".join(f"{found[epsilon]:.3g} (ε = {epsilon:g})" for epsilon in words.epsilons(rows))


def _noise(rows: Rows) -> str:
    return NOISE.format(clip_norm=words.listed(rows, "clip_norm", "{:g}".format), widths=_each(rows, "noise_std"))


def _caps(rows: Rows) -> str:
    said = []
    for epsilon in words.epsilons(rows):
        cap = best_cap(rows[0]["dimension"], epsilon)
        said.append(
            f"At ε = {epsilon:g} the cap holds {words.of_100(cap.mass)} of 100 directions, and "
            f"{words.of_100(1 - cap.miss)} of 100 messages come from it."
        )
    return CAP.format(caps=" ".join(said))


TURNS = "by deciding only after a telling message, the dot by always guessing"
DEFINITE = (
    "The smallest true ε that the optimal test of this setting would call a violation with probability 0.8, were "
)
KINDS = {
    "ldp_sgd": Kind(
        name="LDP-SGD",
        clips=True,
        opening="",
        picture=lambda rows: page_randomizer.render(words.epsilons(rows)),
        head=page_randomizer.HEAD,
        telling_text=page_telling.SIDES,
        telling=page_telling.by_region,
        diamond=TURNS,
        fault="",
        reading="",
        method={},
    ),
    "gaussian": Kind(
        name="Gaussian noise",
        clips=True,
        opening=" A second number, <em>delta</em> (δ), allows for rare exceptions.",
        picture=_noise,
        head=QUIET,
        telling_text=page_telling.LIKELIHOODS,
        telling=page_telling.by_likelihood,
        diamond="by the optimal test, the dot by the everyday guess; the dotted line is what the noise allows",
        fault="from noise that is too narrow",
        reading=" Noise as wide as promised does not give so many right guesses; the number is the ε of Gaussian "
        "noise that does.",
        method={
            "ε̂": "Eq. (2) with δ (paper 003, Eq. (7)): max(ln((1 - δ - FPR)/FNR), ln((1 - δ - FNR)/FPR)), never below "
            "0; mean and standard deviation over repeats, which is not a confidence statement.",
            "Bounds": "Clopper-Pearson on the counts of all repeats, the error probability shared equally by both "
            "rates. Cosine rule: ε̂'s equation at their ends; the lower bound holds for any mechanism. Optimal test: "
            "mu = Φ⁻¹(1 - FPR) - Φ⁻¹(FNR) at their ends, then the ε at δ of Gaussian noise with this mu. The lower "
            "bound of mu holds for any mechanism, its ε for Gaussian noise. Upper bounds hold for these tests alone.",
            "ε exact": "With r the norm after clipping, θ the angle of the pair and σ the noise, a guess is wrong "
            "with probability Φ(-r sin(θ/2)/σ), averaged over the pairs used in the trials; then ε̂'s equation.",
            "ε optimal": "The likelihood ratio: is z likelier under g1? With D the distance after clipping and mu = "
            "D/σ, it is right with probability Φ(mu/2), and no test of the pair lies below its trade-off curve. Its ε "
            "solves δ = Φ(mu/2 - ε/mu) - e^ε Φ(-mu/2 - ε/mu): the promise where D = 2 L. With many pairs, mu is that "
            "of the mean rates.",
            "Ceiling": "The largest lower bound of the optimal test that this many trials can certify.",
            "Detectable": DEFINITE + "σ alone too small.",
            "Verdict": "violation: the lower bound of the cosine rule exceeds the claim, or no Gaussian noise with "
            "the promised mu gives the counts of the optimal test; underpowered: detectable is more than twice the "
            "claim, or both tests gave one answer in all trials; consistent: neither; computed: no trial was run.",
        },
    ),
    "privunit": Kind(
        name="PrivUnit",
        clips=False,
        opening="",
        picture=_caps,
        head=QUIET,
        telling_text=page_telling.CAPS,
        telling=page_telling.by_region,
        diamond=TURNS,
        fault="from a cap that is drawn from too often",
        reading="",
        method={
            "ε exact": "With a and b the densities inside and outside the own cap and B the overlap of both caps, a "
            "guess is wrong with probability a B/2 + b (1 - B)/2, averaged over the pairs of the trials; B by "
            "numerical integration over the angle.",
            "ε optimal": "The region inside g1's cap and outside g0's, or its mirror image if that shows more: |ln| "
            "of the ratio of its probabilities, e^ε for any two gradients that are not zero. Exact, and bounded on "
            "the same trials.",
            "Detectable": DEFINITE + "the cap's probability alone too large.",
        },
    ),
}
