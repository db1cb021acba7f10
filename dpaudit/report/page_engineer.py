"""Renders the engineer's part of the page: every number, every figure, and how they were obtained."""

from collections.abc import Sequence
from html import escape
from typing import Any

from dpaudit.audits.ldp_client import ACCESS, COUNTER_EXAMPLES
from dpaudit.report import markup, words
from dpaudit.report.figures import setting_figure, summary_figure
from dpaudit.report.randomizer_words import kind_of

Rows = Sequence[dict[str, Any]]

HEADERS = (
    "ε", "right % ± std", "exact %", "FPR", "FNR", "ε̂ ± std", "pooled bounds", "ε exact",
    "ε optimal", "pooled bounds", "ceiling", "detectable", "verdict",
)  # fmt: skip

METHOD = (
    (
        "The game",
        "Algorithm 3 of the paper on the client-side audit of LDP-SGD. In each repeat half of the trials randomise g0 "
        "and half g1, so both error rates rest on equal counts. FPR: g1 guessed where g0 was sent; FNR: the reverse.",
    ),
    (
        "Pairs",
        "Fresh: trial i crafts its own pair, used once in each world and in every repeat. Fixed: one pair for "
        "all trials. Either way the rates of both worlds refer to the same pairs.",
    ),
    (
        "Columns",
        "ε: the claim. From right % to ε exact: the cosine rule. ε optimal and the bounds after it: the optimal test.",
    ),
    (
        "Cosine rule",
        "Eq. (3): guess the gradient with the larger cosine to the release; ties go to g0. Fixed in advance.",
    ),
    (
        "ε̂",
        "Eq. (2): max(ln((1 - FPR)/FNR), ln((1 - FNR)/FPR)), never below 0; mean and standard deviation over "
        "repeats, which is not a confidence statement.",
    ),
    (
        "Bounds",
        "Clopper-Pearson on the counts of all repeats, the error probability shared equally by both rates, then "
        "Eq. (2) at their ends. The lower bound holds for the mechanism; the upper one for this test alone.",
    ),
    (
        "ε exact",
        "With Q the probability that a release lies on its gradient's side and θ the angle of the pair, a guess is "
        "right with probability Q (π + θ)/2π + (1 - Q)(π - θ)/2π, averaged over the pairs used in the trials.",
    ),
    (
        "ε optimal",
        "The likelihood-ratio region {<z, g1> > 0 > <z, g0>}, or its mirror image if that shows more: |ln| of the "
        "ratio of its probabilities. Exact, and bounded on the same trials. For one pair no event has a larger ratio; "
        "with norms of at least L the ratio is e^ε. With A the exact accuracy, the region occurs with probability "
        "(2A - 1)/(1 - e^-ε_optimal) in its own world.",
    ),
    ("Ceiling", "The largest lower bound that this many trials can certify, whatever the mechanism."),
    ("Detectable", "The smallest true ε that would be called a violation with probability 0.8, by a perfect attack."),
    (
        "Verdict",
        "violation: a lower bound of either test exceeds the claim; underpowered: detectable is more than twice the "
        "claim, or both tests gave one answer in all trials; consistent: neither; computed: no trial was run.",
    ),
    ("Engines", "; ".join(f"{name}: {meaning}" for name, meaning in words.ENGINES.items()) + "."),
)
LOSSY = (
    "Data marked JPEG was compressed lossily before it was read: its pixels are not those of the original "
    "data set. Gradients, and what depends on them, may differ from results on the original."
)


def render(rows: Rows) -> str:
    """Renders the second part of the page from ordered rows."""
    sources = words.distinct(rows, words.source)
    parts = ["<h1>For engineers</h1>", markup.definitions(_setup(rows))]
    if any("JPEG" in source for source in sources):
        parts.append(markup.paragraph(LOSSY))
    parts.append("<h2>All numbers</h2>")
    for place, source in enumerate(sources):
        own = [row for row in rows if words.source(row) == source]
        parts += [f"<h3>{escape(source)}</h3>"] if len(sources) > 1 else []  # a phone shows no header of the table
        parts.append(markup.table((source, *HEADERS), map(_cells, own), "dense"))
        caption = f"{source}: ε attained in each setting, beside the promise; bars on the dots are the pooled bounds."
        parts.append(markup.figure(summary_figure(own), f"summary-{place}", caption))
    parts.append("<h2>Promised against attained</h2>")
    for craft in words.distinct(rows, "craft"):
        caption = f"{words.craft_name(craft).capitalize()}: promised against attained ε. {_access(craft)}"
        parts.append(markup.figure(setting_figure(rows, craft), f"setting-{craft.replace('_', '-')}", caption))
    method = dict(METHOD) | kind_of(rows).method
    return "\n".join([*parts, "<h2>Method</h2>", markup.definitions(method.items())])


def _access(craft: str) -> str:
    if craft in ACCESS:
        return f"An attacker controls {ACCESS[craft]}."
    return f"The pair is {COUNTER_EXAMPLES[craft]}." if craft in COUNTER_EXAMPLES else ""


def _setup(rows: Rows) -> list[tuple[str, str]]:
    played = [row for row in rows if row["trials"]]
    seconds = sum(row["seconds"] for row in rows)
    kind = kind_of(rows)
    found = [
        ("Data", words.listed(rows, "dataset")),
        ("Randomizer", "" if "mechanism" not in rows[0] else kind.name),
        ("Engine", words.listed(rows, "engine")),
        ("Trials", words.effort(played) if played else "none"),
        ("Confidence", words.assurance(played) if played else ""),
        ("Neighbours", words.words_of(rows, "neighbouring", words.RELATIONS)),
        ("Clip norm L", words.listed(rows, "clip_norm", "{:g}".format) * kind.clips),
        ("Noise σ", words.listed(rows, "noise_std", "{:.4g}".format)),
        ("δ", words.listed(rows, "delta", lambda delta: f"{delta:g}" if delta else "")),
        ("Dimension d", words.listed(rows, "dimension", "{:,}".format)),
        ("Pre-training", words.listed(rows, "pretraining_steps", "{:,} steps".format)),
        ("Seed", words.listed(rows, "seed")),
        ("Versions", words.listed(rows, "versions")),
        ("Device", words.listed(rows, "device")),
        ("Time", f"{seconds:.1f} seconds"),
    ]
    return [(name, text) for name, text in found if text]


def _cells(row: dict[str, Any]) -> list[str]:
    said, interval = words.said, words.interval
    return [
        words.craft_name(row["craft"]),
        f"{row['epsilon']:g}",
        words.with_spread(100 * row["accuracy"], 100 * words.number(row["accuracy_std"]), 2),
        f"{100 * row['accuracy_exact']:.2f}",
        said(row["fpr"], 4),
        said(row["fnr"], 4),
        words.with_spread(row["epsilon_hat"], row["epsilon_hat_std"]),
        interval(row["epsilon_lower"], row["epsilon_upper"]),
        said(row["epsilon_exact"]),
        said(row["epsilon_optimal"]),
        interval(row["epsilon_optimal_lower"], row["epsilon_optimal_upper"]),
        said(row["ceiling"]),
        said(row["detectable"]),
        row["verdict"],
    ]
