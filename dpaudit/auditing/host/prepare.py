"""Prepares the audit of a function on the host: runs a pilot, learns to read its releases, and fits the attacks."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dpaudit import _validate
from dpaudit._engine import fingerprint, hosts
from dpaudit._engine.checkpoint import Checkpoint, of_pilot
from dpaudit._engine.sharding import cores
from dpaudit.auditing.attacks import distinguish, features, scoring
from dpaudit.auditing.attacks.base import Distinguisher
from dpaudit.auditing.attacks.portfolio import PILOT_BYTES, PILOT_MOST, Family, Portfolio
from dpaudit.auditing.attacks.portfolio import family as fit_family
from dpaudit.auditing.host import encoder as encoders
from dpaudit.auditing.host import game as games
from dpaudit.auditing.host import low_bits, named
from dpaudit.auditing.host.chunks import Plan
from dpaudit.auditing.host.encoder import Encoder
from dpaudit.auditing.host.game import HostGame
from dpaudit.auditing.host.mechanism import HostMechanism
from dpaudit.auditing.host.pool import InProcess, Player, Pool, failure
from dpaudit.auditing.host.reader import Unreadable, token
from dpaudit.auditing.host.worker import one_line
from dpaudit.mechanisms.claim import Mechanism

PILOT_LEAST = 4  # pairs


class Terms(NamedTuple):
    """The settings of an audit that are fixed before any trial runs.

    Attributes:
      trials: of each world.
      aside: pairs set aside at first; the pilot is half of them at most.
      until: whether the audit may stop early.
      delta, confidence: of the bounds.
      batch: pairs of a call, or None.
      checkpoint: file of the audit, or None.
    """

    trials: int
    aside: int
    until: bool
    delta: float
    confidence: float
    batch: int | None
    checkpoint: str | os.PathLike[str] | None


class Prepared(NamedTuple):
    """The result of :func:`prepared`.

    Attributes:
      game: to be counted.
      family: of attacks, or None where one was named.
      other: a game of the alternative, or None.
      pilot: pairs on which the family was fitted; 0 without one.
      reproducible: the same key plays the same trials again.
      low_bits: what the last digits of floats show (:func:`low_bits.lower`); None where an attack was named alone.
      kept: ``kept(matters) -> Checkpoint``, or None without a file.
    """

    game: Any
    family: Portfolio | None
    other: Any
    pilot: int
    reproducible: bool
    low_bits: float | None
    kept: Callable[[dict[str, Any]], Checkpoint | None]


class _Pilot(NamedTuple):
    """The first trials, as they were read.

    Attributes:
      encoder: learned on the first ``pairs`` of them.
      begun: all trials, encoded, [n, 2, *shape].
      pairs: of the pilot.
      reproducible: as of :class:`Prepared`.
      seconds: of a pair.
    """

    encoder: Encoder
    begun: list[np.ndarray]
    pairs: int
    reproducible: bool
    seconds: float


@contextlib.contextmanager
def prepared(
    mechanism: Mechanism,
    x0: Any,
    x1: Any,
    fit_key: jax.Array,
    play_key: jax.Array,
    other_key: jax.Array | None,
    *,
    distinguisher: Distinguisher | None,
    attacks: Sequence[Distinguisher],
    worse: Mechanism | None,
    terms: Terms,
) -> Iterator[Prepared]:
    """Prepares an audit; its processes end with the context.

    Args:
      mechanism: whose ``apply`` is a :class:`HostMechanism`.
      x0, x1: the inputs.
      fit_key: for attacks that are fitted.
      play_key, other_key: of the trials, and of those of the alternative, None without one.
      distinguisher: one attack instead of the family.
      attacks: in addition to the family.
      worse: the alternative, or None.
      terms: of the audit.

    Raises:
      InputError: a function that fails, hangs or cannot be sent to a process; releases that cannot be read, too few
        trials, a named attack on releases that are not arrays of one shape; a checkpoint of another audit.
    """
    host = mechanism.apply
    assert isinstance(host, HostMechanism)
    hosts.alone("mechanism", "a function on the host is played by one")
    if distinguisher is None and terms.aside // 2 < PILOT_LEAST:
        raise _validate.expected("trials", "at least 64 where the attack is chosen", 2 * terms.trials)
    with contextlib.ExitStack() as stack:

        def player_of(host: HostMechanism, key: jax.Array) -> tuple[Player, Plan]:
            plan = host.plan(x0, x1, terms.trials, key)
            if host.workers:
                player: Player = Pool(plan, host.__name__, host.workers, host.seconds_per_call)
            else:
                player = InProcess(plan, host.__name__)
            stack.callback(player.close)
            return player, plan

        player, plan = player_of(host, play_key)
        identity = {} if terms.checkpoint is None else _identity(host, plan, x0, x1)
        processes = max(1, host.workers or 0)
        pilot = _pilot(player, plan, host.__name__, terms, identity, family=distinguisher is None)
        how = {"batch": terms.batch, "until": terms.until, "processes": processes}
        size = games.call_size(plan, pilot.encoder, pilot.seconds, **how)
        games.share_out(player, plan, size, processes)
        block = games.block_of(pilot.encoder)
        own = [distinguisher] if distinguisher is not None else list(attacks)
        if mechanism.log_prob is not None and distinguisher is None:
            own.insert(0, distinguish.likelihood_ratio)
        beside = named.scores_of(own, fit_key, mechanism, x0, x1, pilot.encoder, block) if own else None
        fitted: Family | None = None
        shown: float | None = None
        if distinguisher is None:
            shown = low_bits.lower(pilot.begun, delta=terms.delta, confidence=terms.confidence)
            given = _direction(x0, x1, pilot.encoder)
            fitted = fit_family(
                [np.ascontiguousarray(np.moveaxis(leaf[: pilot.pairs], 1, 0)) for leaf in pilot.begun],
                given,
                [attack.name for attack in own],
                pilot=pilot.pairs,
                delta=terms.delta,
                confidence=terms.confidence,
                rename=partial(renamed, known=pilot.encoder.names),
            )
            read = partial(_read, arrays=fitted.arrays, wanted=np.ones(4, bool), beside=beside, block=block)
        else:
            assert beside is not None
            read = partial(_one, scores=beside)
        whole = HostGame(player, plan, pilot.encoder, terms.trials, size, read, begun=pilot.begun)

        def like(apply: Callable[..., Any], key: jax.Array) -> HostGame:
            if not isinstance(apply, HostMechanism):
                raise _validate.expected("alternative", "another function on the host (dpaudit.on_host)", apply)
            player, plan = player_of(apply, key)
            _refuse_other_form(player, plan, pilot.encoder)
            player.use(pilot.encoder)
            return whole._replace(player=player, plan=plan, begun=None)

        family = None if fitted is None else Portfolio(whole, fitted, like, _narrowed)

        def kept(matters: dict[str, Any]) -> Checkpoint | None:
            if terms.checkpoint is None:
                return None
            scores = [] if beside is None else beside.program(pilot.encoder)
            parts = identity | {"setting": fingerprint.digest([fingerprint.text((pilot.encoder, matters)), *scores])}
            return Checkpoint(Path(terms.checkpoint), parts, False)

        other = None if worse is None or other_key is None else like(worse.apply, other_key)
        yield Prepared(whole, family, other, pilot.pairs if family else 0, pilot.reproducible, shown, kept)


def same(x0: Any, x1: Any) -> bool:
    """Tells whether two inputs have the same content."""
    try:
        return token(x0) == token(x1)
    except Unreadable:
        return x0 is x1


def _pilot(
    player: Player, plan: Plan, name: str, terms: Terms, identity: fingerprint.Identity, *, family: bool
) -> _Pilot:
    """Runs the first trials, or reads them from the file beside the checkpoint."""
    file = None
    if terms.checkpoint is not None:
        settings = fingerprint.digest([fingerprint.text((terms.aside, family))])
        file = Checkpoint(of_pilot(terms.checkpoint), identity | {"setting": settings}, False)
        found = file.restore()
        if found is not None:
            return _restored(found, player, name)
    probed = player.probe()
    began = time.perf_counter()
    raw = player.take(range(1))
    try:
        bytes_of_pair = _bytes(raw) / len(games.releases(raw[0], plan.chunk))
        pairs = min(terms.aside // 2, PILOT_MOST, int(PILOT_BYTES // max(1, bytes_of_pair))) if family else 1
        last = max(1, -(-pairs // plan.chunk))
        if last > 1:
            raw = tuple(part + more for part, more in zip(raw, player.take(range(1, last)), strict=True))
        seconds = (time.perf_counter() - began) / min(last * plan.chunk, plan.trials)
        first = tuple(games.releases(part, pairs if family else plan.chunk) for part in raw)
        encoder = encoders.learn((first[0], first[1]), plan.features)
        if not family and encoder.layout is None:
            raise _validate.expected(
                "distinguisher", "None for releases that are not arrays of one shape", f"those of {name}"
            )
        begun = games.encoded(encoder, plan, (raw[0], raw[1]))
    except (Unreadable, ValueError, SystemExit) as error:
        if isinstance(error, _validate.InputError):
            raise
        raise failure(one_line(error), name) from None
    reproducible = probed.repeats and (probed.draws or not (probed.varies or any(_vary(part) for part in first)))
    _tell_unread(encoder, name)
    player.use(encoder)
    found = _Pilot(encoder, begun, pairs, reproducible, seconds)
    if file is not None:
        file.save(**{f"leaf{i}": leaf for i, leaf in enumerate(begun)}, about=np.array(_told(found)))
    return found


def _tell_unread(encoder: Encoder, name: str) -> None:
    if encoder.unread and not encoder.own:
        _validate.warn(f"mechanism: {encoder.unread} is not read in releases of {name}, so a leak there is not seen")


def _told(pilot: _Pilot) -> str:
    return json.dumps([pilot.encoder._asdict(), pilot.pairs, pilot.reproducible, pilot.seconds])


def _restored(found: dict[str, np.ndarray], player: Player, name: str) -> _Pilot:
    about, pairs, reproducible, seconds = json.loads(str(found["about"]))
    encoder = encoders.restored(about)
    _tell_unread(encoder, name)
    player.use(encoder)
    begun = [found[f"leaf{i}"] for i in range(len(found) - 1)]
    return _Pilot(encoder, begun, pairs, reproducible, seconds)


def _bytes(raw: tuple[list[Any], list[Any]]) -> int:
    """Estimates the bytes of releases."""
    arrays = [np.asarray(release).nbytes for part in raw for release in games.releases(part, 4)[:4] if _plain(release)]
    return 16 * len(games.releases(raw[0], 1 << 20)) * (max(arrays, default=256) // 16 + 1) * 2


def _plain(release: Any) -> bool:
    return isinstance(release, (np.ndarray, np.generic))


def _vary(releases: list[Any]) -> bool:
    return len({token(release) for release in releases}) > 1


def _identity(host: HostMechanism, plan: Plan, x0: Any, x1: Any) -> fingerprint.Identity:
    """Identifies the trials: the function by its name and code, the inputs by their content."""
    inputs = []
    for x in (x0, x1):
        try:
            inputs.append(token(x).encode())
        except Unreadable:
            inputs.append(b"")
    return {
        "mechanism or pair of inputs": fingerprint.digest([*host.told(), *inputs]),
        "key": fingerprint.digest([fingerprint.text(plan.words)]),
        "number of trials": fingerprint.digest([fingerprint.text(plan.trials)]),
    }


def _direction(x0: Any, x1: Any, encoder: Encoder) -> np.ndarray | None:
    """Returns x1 - x0 if both inputs have as many numbers as a release."""
    if encoder.layout is None or encoder.own:
        return None
    size = sum(int(np.prod(leaf.shape)) for leaf in encoder.layout)
    beside = sum(int(np.prod(shape)) for shape, _ in encoder.shapes) - size
    try:
        sizes = [sum(np.asarray(leaf, np.float64).size for leaf in jax.tree.leaves(x)) for x in (x0, x1)]
        return np.pad(np.asarray(distinguish.difference(x0, x1)), (0, beside)) if sizes == [size, size] else None
    except (TypeError, ValueError):
        return None


def renamed(names: list[str], known: list[str]) -> list[str]:
    """Replaces the numbers of coordinates by the names of a vocabulary."""
    found = []
    for name in names:
        words = name.split(" ")
        for i, word in enumerate(words[:-1]):
            number = words[i + 1]
            if word == "coordinate" and number.isdecimal() and known[int(number)]:
                words[i : i + 2] = ["", f"“{known[int(number)]}”"]
        found.append(" ".join(word for word in words if word))
    return found


def _read(
    leaves: list[np.ndarray],
    *,
    arrays: scoring.Arrays,
    wanted: np.ndarray,
    beside: named.Named | None,
    block: int,
    number: int | None = None,
) -> np.ndarray:
    """Scores releases [n, 2, *shape] by all finalists, or only by the one of this number."""
    own = np.zeros((len(leaves[0]), 2, 0), np.float32)
    if beside is not None:
        needed = wanted[scoring.OTHERS]
        own = beside(leaves) if needed else np.zeros((len(leaves[0]), 2, beside.count), np.float32)
    chosen = ... if number is None else (..., number)
    sight = None if number is None or wanted.any() else features.only(arrays.sight, number)  # the first scores

    def of_block(part: list[np.ndarray]) -> np.ndarray:
        *release, own = part
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            if sight is not None:
                return features.project(np, features.View(np, release, arrays.reference, 2).numbers, sight)[..., 0]
            return scoring.of_leaves(np, release, own, wanted, arrays)[chosen]

    with ThreadPoolExecutor(min(scoring.THREADS, cores())) as pool:
        parts = games.in_blocks(of_block, [*leaves, own], block)
        return np.concatenate(list(pool.map(lambda part: part(), parts)))


def _one(leaves: list[np.ndarray], *, scores: named.Named) -> np.ndarray:
    return scores(leaves)[..., 0]


def _narrowed(game: HostGame, needs: np.ndarray, number: int | None) -> HostGame:
    read = game.read
    assert isinstance(read, partial)
    return game._replace(read=partial(read, wanted=needs, number=number))


def _refuse_other_form(player: Player, plan: Plan, encoder: Encoder) -> None:
    """Refuses an alternative whose releases do not have the form of the mechanism's."""
    if encoder.layout is None:
        return
    raw = player.take(range(1))
    found = encoders.learn((games.releases(raw[0], plan.chunk), games.releases(raw[1], plan.chunk)), None)
    form = [(leaf.path, leaf.shape) for leaf in encoder.layout]
    if found.layout is None or [(leaf.path, leaf.shape) for leaf in found.layout] != form:
        raise _validate.expected("alternative", "releases like the mechanism's", "others")
