"""Counting on the devices is counting on the host, score for score; and what is kept of an audit is enough."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpaudit
from dpaudit import Claim, _validate, distinguish, play
from dpaudit._engine import game
from dpaudit.auditing import ranks, tally
from dpaudit.auditing.bounds import sequential
from dpaudit.auditing.bounds.estimate import errors
from tests.interrupting import Killed, killed_at

KEY = jax.random.key(11)
X0, X1 = jnp.zeros(32), jnp.full(32, 0.16)
TRIALS = 4001


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Blocks of 256 trials, so that an audit of few trials takes several calls to the devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(game, "CPU", game.CPU._replace(bytes=256 * X0.nbytes))
        yield


def noisy(key, x):
    return x + jax.random.normal(key, x.shape)


def total(threshold):
    return distinguish.Distinguisher(lambda *_: jnp.sum, threshold, "sum")


CASES: dict[str, dict[str, Any]] = {
    "chosen": {"distinguisher": distinguish.projection},
    "family": {},
    "fixed": {"distinguisher": total(3.0)},
    "violation": {
        "until": sequential.violation(),
        "claim": Claim(1.2),
        "distinguisher": distinguish.projection,
    },
    "width": {"until": sequential.width(0.35), "distinguisher": distinguish.projection},
    "family at every pair": {"until": sequential.width(0.35)},
}


def audited(case: str, **more) -> dpaudit.AuditResult:
    return dpaudit.audit(noisy, X0, X1, key=KEY, trials=TRIALS, **(CASES[case] | more))


@pytest.fixture(scope="module")
def whole(small_blocks) -> dict[str, dpaudit.AuditResult]:
    return {case: audited(case) for case in CASES}


@pytest.mark.integration
def test_counts_are_those_of_the_scores_on_the_host(whole):
    half = TRIALS // 2
    _, play_key = jax.random.split(KEY)
    scores = play(play_key, lambda key, world: noisy(key, (X0, X1)[world]), jnp.sum, half).astype(np.float64)
    assert errors(scores, 3.0) == (whole["fixed"].fpr * half, (whole["fixed"].fnr * half))
    aside, result = half // 4, whole["chosen"]
    directed = distinguish.projection.fit(KEY, dpaudit.Mechanism(noisy), X0, X1)
    scores = play(play_key, lambda key, world: noisy(key, (X0, X1)[world]), directed, half).astype(np.float64)
    wrong = errors(scores[:, aside:], result.threshold)
    assert result.threshold in scores[:, :aside]
    assert wrong == pytest.approx((result.fpr * result.negatives, result.fnr * result.positives))


TYPES = [np.float32, np.float16, jnp.bfloat16, np.int32, np.uint32, np.int8, np.uint8, np.bool_]


@pytest.mark.parametrize("kind", TYPES, ids=[np.dtype(kind).name for kind in TYPES])
def test_a_threshold_divides_the_scores_as_in_float64(kind):
    """Next to every score, and at the ends of its type, where rounding the threshold up would take a score along."""
    kind = np.dtype(kind)
    if kind.kind in "iub":
        most = 1 if kind.kind == "b" else np.iinfo(kind).max
        least = 0 if kind.kind in "ub" else np.iinfo(kind).min
        scores = np.unique(np.array([least, least + 1, 0, 1, most - 1, most], object).astype(kind))
        beyond = [-0.5, most + 0.5, 1e30, math.inf]
    else:
        some = np.random.default_rng(0).normal(size=50)
        scores = np.concatenate([some, [0, -0.0, 6e4, -6e4, math.inf, -math.inf]]).astype(kind)
        beyond = [1e300, -1e300, math.inf, -math.inf]
    wide = scores.astype(np.float64)
    near = np.concatenate([wide, np.nextafter(wide, math.inf), np.nextafter(wide, -math.inf), beyond])
    table = jnp.asarray(np.stack([scores, scores], 1))
    for threshold in near.tolist():
        if kind.kind in "iu" and kind.itemsize >= 4 and threshold < wide.min():
            with pytest.raises(
                _validate.InputError, match=r"^threshold: expected at least -?[0-9]+, the smallest score of "
            ):
                ranks.bar(threshold, kind)
            continue
        bar = ranks.bar(threshold, kind)
        sums, _, _ = tally.on_devices(table, bar, np.uint32(0), np.uint32(len(scores)), mesh=None)
        above = int((wide > threshold).sum())
        assert sums == [len(scores) - above, 0, 0, above], threshold


def test_padding_and_trials_set_aside_are_not_counted_and_nan_is_the_largest():
    bar = ranks.bar(0.5, np.dtype(np.float32))
    scores = jnp.array([[9.0, -9.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [jnp.nan, -7.0], [-jnp.nan, 8.0]])
    sums, ends, _ = tally.on_devices(scores[:5], bar, np.uint32(1), np.uint32(4), mesh=None)
    assert sums == [0, 1, 1, 1]  # of the three in the middle
    low, high = ~np.array(ends[:2]), np.array(ends[2:])
    np.testing.assert_array_equal([low, high], ranks.rank(np.array([[0, 0], [1, 1]], np.float32)))
    sums, ends, _ = tally.on_devices(scores, bar, np.uint32(1), np.uint32(6), mesh=None)
    assert sums == [0, 2, 1, 2]
    assert np.array(ends[2]) == np.iinfo(np.int32).max > ranks.rank(np.array([np.inf], np.float32))[0]
    of_several = jnp.stack([0 * scores, scores], -1)
    again, _, _ = tally.on_devices(of_several, bar, np.uint32(1), np.uint32(6), np.uint32(1), mesh=None)
    assert again == sums


@pytest.mark.parametrize("kind", [*TYPES, np.int64, np.float64], ids=lambda kind: np.dtype(kind).name)
@pytest.mark.parametrize("bars", [0, 3])
def test_numpy_counts_as_the_compiled_program_does(kind, bars):
    """On scores with ties, infinities and NaN, of which some are padding or set aside."""
    drawn = np.random.default_rng(1).normal(size=(1000, 2)) * 3
    drawn[:6, 0], drawn[3:9, 1] = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], 1.0
    with np.errstate(invalid="ignore"), jax.enable_x64(True):
        scores = drawn.astype(kind)
        bar, *more = (ranks.bar(threshold, scores.dtype) for threshold in (0.5, 0.0, 1.0, 2.5))
        of_bars = np.array(more[:bars], bar.dtype)
        found = tally.on_devices(jnp.asarray(scores), bar, np.uint32(7), np.uint32(990), None, of_bars, mesh=None)
    for one, other in zip(tally.on_host(scores[7:990], bar, of_bars), found, strict=True):
        np.testing.assert_array_equal(one, np.array(other))


def test_the_program_counts_where_numpy_would_take_longer(monkeypatch, whole):
    programs: Any = tally.on_devices
    before = programs._cache_size()
    assert audited("chosen") == whole["chosen"]
    assert programs._cache_size() == before
    monkeypatch.setattr(tally, "HOST_PAIRS", 0)
    assert audited("chosen") == whole["chosen"]
    assert programs._cache_size() > before


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch", [1, 700, None])
def test_the_result_does_not_depend_on_the_batch(case, batch, whole):
    assert audited(case, batch=batch) == whole[case]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("after", [600, 2500])  # while trials are set aside, and later
def test_a_killed_audit_goes_on_from_its_checkpoint(tmp_path, monkeypatch, case, after, whole):
    file = tmp_path / "audit.npz"
    with pytest.raises(Killed):
        audited(case, checkpoint=file, batch=1, progress=killed_at(after))
    seen = []
    assert audited(case, checkpoint=file, progress=seen.append) == whole[case]
    assert after <= seen[0] < after + 600
    assert seen[0] < seen[-1]
    assert seen[-1] == TRIALS - 1 or "stopped early" in whole[case].method
    seen.clear()
    monkeypatch.setattr(game.Game, "call", None)
    assert audited(case, checkpoint=file, progress=seen.append) == whole[case]  # plays nothing, the pilot included
    assert len(seen) == 1
    assert file.stat().st_size < 5000  # counts, no scores


FOREIGN = [
    ({"key": jax.random.key(12)}, "chosen", "key$"),
    ({"trials": 4003}, "fixed", "number of trials$"),
    ({"delta": 0.01}, "chosen", "setting$"),
    ({"confidence": 0.9}, "violation", "setting$"),
    ({"claim": Claim(0.6)}, "violation", "setting$"),
    ({"until": sequential.width(0.5)}, "width", "setting$"),
    ({"until": None}, "width", "setting$"),
    ({"distinguisher": total(2.0)}, "fixed", "setting$"),
    ({"distinguisher": distinguish.cosine}, "chosen", "mechanism or pair of inputs and another setting$"),
]


@pytest.mark.parametrize("change, case, reason", FOREIGN)
def test_a_checkpoint_of_another_audit_is_refused_with_the_difference(tmp_path, change, case, reason):
    file = tmp_path / "audit.npz"
    given = {"key": KEY, "trials": TRIALS, **CASES[case]}
    with pytest.raises(Killed):
        dpaudit.audit(noisy, X0, X1, **given, checkpoint=file, progress=killed_at(100))
    good = file.read_bytes()
    match = r"^checkpoint: expected one of this audit, got audit\.npz: made by another "
    x0 = X0 + 1 if change.get("distinguisher") is distinguish.cosine else X0
    with pytest.raises(_validate.InputError, match=match + reason):
        dpaudit.audit(noisy, x0, X1, **(given | change), checkpoint=file)
    with pytest.raises(_validate.InputError, match=match + "mechanism or pair of inputs$"):
        dpaudit.audit(lambda key, x: 2 * noisy(key, x), X0, X1, **given, checkpoint=file)
    with pytest.raises(_validate.InputError, match=match + "mechanism or pair of inputs$"):
        dpaudit.audit(noisy, X0, X1.at[0].set(0.17), **given, checkpoint=file)
    assert file.read_bytes() == good


def test_what_changes_no_count_may_change(tmp_path, whole):
    file = tmp_path / "audit.npz"
    with pytest.raises(Killed):
        audited("fixed", checkpoint=file, batch=1, progress=killed_at(1000))
    claimed = audited("fixed", checkpoint=file, claim=Claim(0.01), confidence=0.9)
    assert claimed.verdict == "violation"
    assert (claimed.fpr, claimed.fnr) == (whole["fixed"].fpr, whole["fixed"].fnr)


def test_a_torn_checkpoint_is_refused_and_kept(tmp_path):
    file = tmp_path / "audit.npz"
    audited("chosen", checkpoint=file)
    good = file.read_bytes()
    for torn in (good[:100], good[: len(good) // 2], good[:-1], b"", b"not a checkpoint"):
        file.write_bytes(torn)
        with pytest.raises(_validate.InputError, match=r"^checkpoint: expected a whole checkpoint, got audit\.npz: "):
            audited("chosen", checkpoint=file)
        assert file.read_bytes() == torn
    with pytest.raises(_validate.InputError, match=r"^checkpoint: expected a file in a folder that exists, got "):
        audited("chosen", checkpoint=tmp_path / "absent" / "audit.npz")


def test_scores_that_are_no_number_each_are_refused():
    vectors = distinguish.Distinguisher(lambda *_: lambda z: z[:3], 0.0, "own")
    with pytest.raises(
        _validate.InputError,
        match=r"^distinguisher: expected one number for each release, got shape \[3\] \(from own\)$",
    ):
        dpaudit.audit(noisy, X0, X1, key=KEY, trials=100, distinguisher=vectors)
