"""Turns what the networks say into comparison rows: the three research questions, and the defences."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import softmax

from dpaudit.auditing.result import json_number
from dpaudit.training.dropout import membership, publishing
from dpaudit.training.dropout.membership import MAXIMUM, MEAN, MINIMUM, STD
from dpaudit.training.dropout.publishing import MeanStd
from experiments.common import Rows
from experiments.paper003.bench import COUNTS, DELTA, TEMPERATURES, Bench
from experiments.paper003.runs import Found, Judged

CONFIDENCE = 0.95
DETERMINISTIC = "deterministic"
SINGLES = {"mean": (MEAN,), "std": (STD,), "min": (MINIMUM,), "max": (MAXIMUM,)}
TOGETHER = {"mean std": (MEAN, STD), "min max": (MINIMUM, MAXIMUM), "min max mean std": (MEAN, STD, MINIMUM, MAXIMUM)}
UNITS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)  # of Fig. 8
BINS = 25  # of Fig. 7
NULLS = 20  # estimates, at least, of networks that differ in nothing
TARGETS = 4

Estimate = dict[str, Any]


class Seen(NamedTuple):
    """What an attacker sees of m networks: statistics [m, k], larger for members, and the same made more normal."""

    statistics: np.ndarray
    features: np.ndarray

    def only(self, columns: tuple[int, ...]) -> "Seen":
        return Seen(self.statistics[:, columns], self.features[:, columns])


def of_prediction(found: Found, label: int) -> Seen:
    """Algorithm 1: the loss of one deterministic prediction."""
    p = softmax(found.deterministic.astype(np.float64), axis=-1)[:, label]
    loss = -np.log(np.maximum(p, np.finfo(float).tiny))
    return Seen(membership.of_loss(loss), membership.gaussian_features(p, 0 * p, p, p)[:, :1])


def of_samples(
    found: Found, label: int, *, count: int | None = None, temperature: float = 1.0, unit: float | None = None
) -> Seen:
    """Algorithm 2: mean, 1/std, min and max of the first samples, in multiples of a unit where there is one."""
    p = softmax(found.samples[:, :count].astype(np.float32) / np.float32(temperature), axis=-1)[..., label]
    told = [of(p.astype(np.float64), axis=1) for of in (np.mean, np.std, np.min, np.max)]
    if unit is not None:
        told = [np.asarray(publishing.quantise(values, unit), np.float64) for values in told]
    return Seen(membership.statistics(*told), membership.gaussian_features(*told))


def estimate(bench: Bench, key: jax.Array, seen: Seen, member: np.ndarray) -> Estimate:
    """Returns the paper's estimate for each hundred networks, its null, and the bounds.

    Returns:
      ``ours``, the mean over the repeats, and ``deviation``; ``null``: the same with the coins drawn again, so that
      the networks of "D" and "D'" do not differ; ``infinite``: the share of repeats with an infinite estimate, which
      an error rate of zero gives; ``of_all``: the estimate of all networks at once, with its null; ``honest`` and
      ``likelihood_ratio``: lower bounds from the half of all networks that is not used to choose.
    """
    null_key, audit_key = jax.random.split(key)
    null_keys = jax.random.split(null_key, -(-NULLS // bench.scale.repeats))
    shuffled = [np.asarray(jax.random.permutation(key, member)) for key in null_keys]
    columns = [tuple(range(seen.statistics.shape[1]))]

    def best(member: np.ndarray, some: slice, **options: Any) -> float:
        found = membership.estimates(seen.statistics[some], member[some], delta=DELTA, subsets=columns, **options)
        return max(best.value for best in found.values())

    groups = [slice(i, i + bench.scale.models) for i in range(0, len(member), bench.scale.models)]
    each = [best(member, group) for group in groups]
    risk = membership.audit(audit_key, seen.statistics, member, subsets=columns, delta=DELTA, confidence=CONFIDENCE)
    ratio = membership.audit_likelihood_ratio(audit_key, seen.features, member, delta=DELTA, confidence=CONFIDENCE)
    values = {
        "ours": np.mean(each),
        "deviation": np.std(each, ddof=1) if len(each) > 1 else None,
        "null": np.mean([best(coins, group) for coins in shuffled for group in groups]),
        "infinite": np.mean(np.isinf([best(member, group, zero_count=None) for group in groups])),
        "of_all": risk.estimate.value,
        "null_of_all": best(shuffled[0], slice(None)),
        "honest": risk.honest.epsilon_lower,
        "likelihood_ratio": ratio.epsilon_lower,
    }
    return {name: None if value is None else round(float(value), 4) for name, value in values.items()}


class Book:
    """Writes the rows of one scale."""

    def __init__(self, bench: Bench, name: str, rows: Rows, key: jax.Array):
        self.bench, self.name, self.rows, self.key = bench, name, rows, key
        models, repeats = bench.scale.models, bench.scale.repeats
        self.scale = f"{models * repeats:,} networks, {repeats} x {models}"

    def write(self, quantity: str, setting: dict[str, Any], value: Any, **more: Any) -> None:
        row = self.rows.add(quantity, {"scale": self.name} | setting, value, scale=self.scale)
        row |= {name: json_number(one) for name, one in more.items()}

    def estimated(self, setting: dict[str, Any], seen: Seen, member: np.ndarray) -> None:
        self.key, key = jax.random.split(self.key)
        found = estimate(self.bench, key, seen, member)
        self.write("epsilon", setting, found.pop("ours"), **found)

    def compared(self, setting: dict[str, Any], first: Seen, second: Seen, member: np.ndarray, among: int) -> None:
        """By how much the second's membership advantage exceeds the first's, by thresholds and by likelihoods.

        All intervals of a question hold together with confidence: each is one ``among`` so many (Bonferroni).
        """
        ways = {
            "thresholds": (publishing.thresholds, "statistics"),
            "ratio": (publishing.likelihood_ratio, "features"),
        }
        for way, (attack, field) in ways.items():
            self.key, key = jax.random.split(self.key)
            sides = getattr(first, field), getattr(second, field)
            confidence = 1 - (1 - CONFIDENCE) / among
            found = publishing.compare(key, *sides, member, attack=attack, confidence=confidence)
            apart = {"low": found.low, "high": found.high, "first": found.first, "second": found.second}
            self.write("advantage", setting | {"attack": way}, found.difference, **apart)


def trained(book: Book, judged: Judged) -> None:
    """Adds what was trained, how useful it is, and what it promises."""
    bench = book.bench
    labels = bench.labels[bench.evaluated]
    accuracy = utility(book, judged, labels)
    scale = bench.scale._asdict() | {"steps": bench.scale.steps, "noise": bench.noise, "shown": bench.name}
    scale |= {"shadow": len(bench.rows.shadow), "network": type(bench.model).__name__, "evaluated": len(labels)}
    book.write("trained", {}, accuracy, **scale)
    for accounting, spent in bench.epsilon().items():
        book.write("accounted", {"accounting": accounting}, spent)


def question_1(book: Book, number: int, label: int, found: Found) -> None:
    """Fig. 5: is more leaked by samples than by one prediction? And Fig. 7, the distributions of the mean."""
    plain, seen = of_prediction(found, label), of_samples(found, label)
    book.estimated({"part": 1, "target": number, "seen": DETERMINISTIC}, plain, found.member)
    for name, columns in (SINGLES | TOGETHER).items():
        one = {"part": 1, "target": number, "seen": name}
        book.estimated(one, seen.only(columns), found.member)
        if name in TOGETHER:
            book.compared(
                one | {"to": DETERMINISTIC}, plain, seen.only(columns), found.member, TARGETS * len(TOGETHER)
            )
    for count in (2, found.samples.shape[1]):
        mean = of_samples(found, label, count=count).statistics[:, MEAN]
        for world in (False, True):
            shares, edges = np.histogram(mean[found.member == world], bins=BINS, range=(0, float(mean.max())))
            one = {"target": number, "samples": count, "member": world}
            middle = float(mean[found.member == world].mean())
            book.write("histogram", one, middle, end=float(edges[-1]), counts=shares.tolist())


def question_2(book: Book, number: int, label: int, found: Found) -> None:
    """Fig. 6: does the number of samples matter?"""
    every = of_samples(found, label)
    for count in COUNTS:
        seen = of_samples(found, label, count=count)
        for name, columns in (SINGLES | TOGETHER).items():
            one = {"part": 2, "target": number, "seen": name, "samples": count}
            book.estimated(one, seen.only(columns), found.member)
            if name in TOGETHER and count < found.samples.shape[1]:
                sides = every.only(columns), seen.only(columns)
                among = TARGETS * len(TOGETHER) * (len(COUNTS) - 1)
                book.compared(one | {"to": found.samples.shape[1]}, *sides, found.member, among)


def question_3(book: Book, number: int, label: int, found: Found) -> None:
    """Fig. 8(b), and the other defences: temperature, labels only."""
    columns = TOGETHER["mean std"]
    whole = of_samples(found, label).only(columns)
    for unit in UNITS:
        seen = of_samples(found, label, unit=unit).only(columns)
        one = {"part": 3, "target": number, "seen": "mean std", "unit": unit}
        book.estimated(one, seen, found.member)
        book.compared(one | {"to": "unrounded"}, whole, seen, found.member, TARGETS * len(UNITS))
    for temperature in TEMPERATURES:
        one = {"part": 3, "target": number, "seen": "mean std", "temperature": temperature}
        book.estimated(one, of_samples(found, label, temperature=temperature).only(columns), found.member)
    mean = softmax(found.samples.astype(np.float32), axis=-1).mean(axis=1)
    right = (publishing.label_only(mean) == label).astype(np.float64)[:, None]
    book.estimated({"part": 3, "target": number, "seen": "label"}, Seen(right, right), found.member)


def utility(book: Book, judged: Judged, labels: np.ndarray) -> float:
    """Accuracy, calibration and error detection on other records, means over networks; returns the plain accuracy."""

    def write(told: dict[str, Any], published: Iterable[tuple[Any, Any]]) -> float:
        each = [_useful(MeanStd(mean, std), labels) for mean, std in published]
        middle = {name: float(np.nanmean([one[name] for one in each])) for name in each[0]}
        book.write("utility", told, middle.pop("accuracy"), networks=len(each), **middle)
        return float(np.mean([one["accuracy"] for one in each]))

    plain = write({"published": DETERMINISTIC}, ((p, None) for p in judged.deterministic))
    for i, count in enumerate(COUNTS):
        write({"published": "mean", "samples": count}, ((p, None) for p in judged.first[:, i]))
    for i, temperature in enumerate(TEMPERATURES):
        published = zip(judged.mean[:, i], judged.std[:, i], strict=True)
        write({"published": "mean std", "temperature": temperature}, published)
    warm = TEMPERATURES.index(1.0)
    for unit in UNITS:
        rounded = publishing.quantise(MeanStd(judged.mean[:, warm], judged.std[:, warm]), unit)
        write({"published": "mean std", "unit": unit}, zip(rounded.mean, rounded.std, strict=True))
    return plain


def _useful(published: MeanStd, labels: np.ndarray) -> dict[str, float]:
    right = publishing.accuracy(published.mean, labels)
    unsure: dict[str, Callable[[], np.ndarray]] = {"auroc_entropy": lambda: publishing.entropy(published.mean)}
    if published.std is not None:
        unsure["auroc_std"] = lambda: publishing.std_of_prediction(*published)
    return {
        "accuracy": right.accuracy,
        "undecided": right.undecided,
        "calibration_error": publishing.calibration_error(published.mean, labels),
    } | {name: publishing.error_auroc(of(), published.mean, labels) for name, of in unsure.items()}
