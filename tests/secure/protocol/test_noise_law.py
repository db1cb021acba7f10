"""Tests the noise of opened sums, drawn through the whole protocol of two servers, against its exact law."""

from functools import cache
from math import comb
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpaudit.secure.channel import Channel
from dpaudit.secure.crypto.randomness import system
from dpaudit.secure.noise import binomial
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement, in_process
from dpaudit.secure.protocol.agreement import SERVERS, Terms
from dpaudit.secure.service.records import Records
from dpaudit.secure.service.session import Session

DIMENSION = 1 << 15  # a block
BINS = 4_096


def terms(protocol: str) -> Terms:
    """Returns the terms of three owners whose noise is a clip norm wide; the default of coins and ring."""
    size = {"dimension": DIMENSION, "examples": 30, "noise_multiplier": 1.0}
    return agreement.terms(owners=("alice", "bob", "carol"), protocol=protocol, **size)


def opened(folder: Path, protocol: str, steps: int) -> np.ndarray:
    """Returns what ``steps`` steps of a session open, where the sums are known: the noise, int64 [steps, d]."""
    mine = terms(protocol)
    half = 1 << (mine.ring_bits - 1)
    masks = np.random.default_rng(0).integers(-half, half, DIMENSION)
    sums = np.arange(DIMENSION) - DIMENSION // 2

    def party(side: int, share: np.ndarray):
        def run(channel: Channel) -> list[np.ndarray]:
            records = Records(folder / SERVERS[side], SERVERS[side], mine)
            session, found = Session(channel, SERVERS[side], mine, records), []
            for step in range(1, steps + 1):
                channel.deadline(600.0)
                owners, _ = session.agree(step, dict.fromkeys(mine.owners, bytes(16)))
                session.open(step, owners, share)
                found.append(records.opened(step).values)
            records.close()
            return found

        return run

    first = (sums + masks + half) % (2 * half) - half
    told = in_process.together(in_process.channels(600.0), party(0, first), party(1, masks))
    np.testing.assert_array_equal(*told)
    return np.array(told[0]) - sums


@cache
def law_of(noise: Binomial) -> np.ndarray:
    """Computes the probability of each value from -reach on: heads of the coins, in steps, plus two uniforms."""
    heads = np.zeros(noise.step * noise.coins + 1)
    heads[:: noise.step] = [comb(noise.coins, count) / 2**noise.coins for count in range(noise.coins + 1)]
    for _ in range(2):  # the mean over a window of a step
        sums = np.concatenate([np.zeros(1), np.cumsum(np.concatenate([heads, np.zeros(noise.step - 1)]))])
        heads = (sums[1:] - sums[np.maximum(np.arange(1, len(sums)) - noise.step, 0)]) / noise.step
    return heads


def pvalues(drawn: np.ndarray, noise: Binomial) -> dict[str, float]:
    """Compares draws [n, d] with the law: values in bins alike, their lowest bits, mean, variance, and neighbours."""
    values, law = drawn.ravel() + noise.reach, law_of(noise)
    edges = np.searchsorted(np.cumsum(law), np.arange(1, BINS) / BINS)
    edges = np.unique(np.concatenate([[0], edges + 1, [len(law)]]))
    low = min(noise.step, BINS)
    parts = {
        "bins": (np.histogram(values, edges)[0], np.add.reduceat(law, edges[:-1])),
        "lowest bits": (np.bincount(values % low, minlength=low), np.bincount(np.arange(len(law)) % low, law)),
    }
    found = {}
    for name, (counts, probabilities) in parts.items():
        wanted = probabilities / probabilities.sum() * values.size
        found[name] = float(stats.chisquare(counts, wanted).pvalue)
    centred = drawn / noise.std
    found["mean"] = 2 * float(stats.norm.sf(abs(centred.mean()) * values.size**0.5))
    spread = np.arange(len(law)) - noise.reach
    fourth = float(law @ (spread / noise.std) ** 4)
    found["variance"] = 2 * float(stats.norm.sf(abs((centred**2).mean() - 1) * (values.size / (fourth - 1)) ** 0.5))
    for axis, name in enumerate(("steps", "coordinates")):
        later, sooner = (np.delete(centred, end, axis) for end in (0, -1))
        pairs = later * sooner
        found[name] = 2 * float(stats.norm.sf(abs(pairs.mean()) * pairs.size**0.5))
    return found


@pytest.mark.integration
@pytest.mark.parametrize(
    ("protocol", "steps"),
    [
        ("transfers", 3),
        ("circuit", 2),
        pytest.param("transfers", 306, marks=pytest.mark.slow),  # ten million draws
    ],
)
def test_draws_through_the_protocol_have_the_exact_law(tmp_path: Path, protocol: str, steps: int) -> None:
    noise = terms(protocol).opening().noise
    assert isinstance(noise, Binomial)
    drawn = opened(tmp_path, protocol, steps)
    found = pvalues(drawn, noise)
    print(f"{protocol}, {drawn.size} draws: " + ", ".join(f"{name} p = {value:.3g}" for name, value in found.items()))
    assert np.abs(drawn).max() <= noise.reach
    assert min(found.values()) > 1e-6


def test_the_law_is_that_of_the_accounting() -> None:
    noise = binomial.binomial(coins=7, step_bits=3)
    law = law_of(noise)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert len(law) == 2 * noise.reach + 1
    spread = np.arange(len(law)) - noise.reach
    assert law @ spread == pytest.approx(0, abs=1e-9)
    assert law @ spread**2 == pytest.approx(noise.std**2, rel=1e-12)


@pytest.mark.parametrize(
    "twin", ["a uniform missing", "a bit that is never set", "a biased coin", "noise used twice", "half the noise"]
)
@pytest.mark.slow
def test_ten_million_draws_tell_a_wrong_law(twin: str) -> None:
    noise = terms("transfers").opening().noise
    assert isinstance(noise, Binomial)
    drawn = binomial.sample(noise, 306 * DIMENSION, system).reshape(306, DIMENSION)
    assert min(pvalues(drawn, noise).values()) > 1e-6
    rng = np.random.default_rng(1)
    if twin == "a uniform missing":
        heads = rng.binomial(noise.coins, 0.5, drawn.shape) * noise.step
        drawn = heads + rng.integers(0, noise.step, drawn.shape) + noise.step // 2 - noise.reach
    elif twin == "a bit that is never set":
        drawn -= (drawn + noise.reach) & 1
    elif twin == "a biased coin":
        drawn += noise.step * (rng.random(drawn.shape) < 0.02)
    elif twin == "noise used twice":
        drawn[1::2] = drawn[::2]
    else:
        drawn //= 2
    assert min(pvalues(drawn, noise).values()) < 1e-6
