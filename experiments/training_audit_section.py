"""The part of experiments/README.md that tells of audits of whole trainings."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.markdown import number, select, table
from experiments.training_audit import FAULTY

Rows = Sequence[dict[str, Any]]
FAULTS = ("noise halved", "clipping skipped")


def section(rows: Rows) -> Iterable[str]:
    """Markdown blocks, in reading order."""
    cases = _cases(rows)
    kept = sum(case["sound"]["ours"] <= case["sound"]["setting"]["accounted"] for case in cases)
    confidence = rows[0]["setting"]["confidence"]
    yield "## Audits of whole trainings\n"
    yield "Command: `python -m experiments.training_audit`, then `make results`.\n"
    yield (
        f"The ε that an adversary proves, with confidence {confidence:.0%} in each bound, beside the ε that was accounted (add or remove "
        "one record): of DP-SGD as it ships, and of the same with its noise halved or its clipping skipped, which are "
        f"accounted as if they were sound. **{kept} of {len(cases)} sound trainings stay at or below what was accounted; faults caught: "
        f"{_caught(cases)}.** A bound in bold is a violation.\n"
    )
    yield table(
        ["adversary", "batches", "δ", "accounted", "sound", "share", *FAULTS, "what was run"], map(_line, cases)
    )
    yield (
        "*White box*: every step's noisy sum is seen, and the canary is a gradient at right angles to all others, scored by its "
        "likelihood ratio. It is in the data of half the trainings, or of one run with many canaries, or it is put into half of "
        "the steps (where a bound on the noise becomes one on ε by the accounting itself). *Black box*: only the final loss of one "
        "record is seen; the watermark lights the pixels that no other record lights.\n"
    )
    if any(row["fingerprint"] is None for row in rows):
        yield (
            "The last column is the scale that was run. Some of these rows are of an earlier, smaller one than the command's now, "
            f"which makes up to {FAULTY:,} trainings of the faulty ones, and 100,000 of each where only a loss is seen.\n"
        )
    yield from _gap(rows)


def _gap(rows: Rows) -> Iterable[str]:
    """Where the white box's distance from the accounted epsilon comes from, in its own numbers."""
    shares = {}
    for curve in ("any", "Gaussian"):
        for delta in (1e-2, 1e-5):
            own = select(
                rows, "epsilon_lower", audit="white box", training="sound", rate=1.0, curve=curve, delta=delta
            )
            shares[curve, delta] = " to ".join(f"{share:.2f}" for share in _ends(map(_share, own)))
    yield (
        "Where the rest of a white-box ε is: the pair is the one that the accounting is tight for, and the score is the best "
        "there is, so what is missing is trials. A bound that assumes nothing must see the events that cost most, which are "
        f"about as rare as δ: with full batches it reaches {shares['any', 1e-2]} of the accounted ε at δ = 0.01 but {shares['any', 1e-5]} at δ = 1e-5. "
        "Read as a Gaussian curve, which it is there, the same trainings tell it from common events: "
        f"{shares['Gaussian', 1e-2]} and {shares['Gaussian', 1e-5]}.\n"
    )


def _cases(rows: Rows) -> list[dict[str, dict[str, Any]]]:
    """The three rows of each case, by training."""
    threes = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
    return [{row["setting"]["training"]: row for row in three} for three in threes]


def _line(case: dict[str, dict[str, Any]]) -> list[str]:
    sound = case["sound"]
    setting = sound["setting"]
    what = [setting["audit"], *(setting[name] for name in ("data", "target") if name in setting)]
    what += {"any": ["nothing assumed"], "Gaussian": ["Gaussian curve"]}.get(setting.get("curve"), [])
    batches = (
        f"{'full' if setting['rate'] == 1 else 'q = ' + format(setting['rate'], '.3f')}, {setting['steps']} steps"
    )
    found = [_marked(case[training]) for training in ("sound", *FAULTS)]
    return [
        ", ".join(what),
        batches,
        f"{setting['delta']:g}",
        number(setting["accounted"]),
        found[0],
        number(_share(sound)),
        *found[1:],
        _scales(case),
    ]


def _scales(case: dict[str, dict[str, Any]]) -> str:
    """What was run of the sound training and, where it was something else, of the faulty ones."""
    sound, faulty = case["sound"]["scale"], list(dict.fromkeys(case[fault]["scale"] for fault in FAULTS))
    words = [scale.partition(", test accuracy")[0] for scale in (sound, *faulty)]
    return (
        sound if set(words) == {words[0]} else f"{sound}; of the faulty ones {' and '.join(dict.fromkeys(words[1:]))}"
    )


def _marked(row: dict[str, Any]) -> str:
    return f"**{number(row['ours'])}**" if row["ours"] > row["setting"]["accounted"] else number(row["ours"])


def _share(row: dict[str, Any]) -> float:
    return row["ours"] / row["setting"]["accounted"]


def _ends(values: Iterable[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[0], ordered[-1]


def _caught(cases: list[dict[str, dict[str, Any]]]) -> str:
    seen = [case[fault]["ours"] > case[fault]["setting"]["accounted"] for case in cases for fault in FAULTS]
    return f"{sum(seen)} of {len(seen)}"
