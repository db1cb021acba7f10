"""The attacks that an audit plays where none is named: all on the same releases, the best one chosen on trials aside.

A pilot, the first of the trials that are set aside, is read as raw releases: the family of :mod:`features` looks at
every number of them, tables and a small network are fitted, and those that show most become the finalists. All
finalists are one program of scores; the trials set aside choose among them, and the bound speaks of the one that was
chosen, on the other trials. So however many were tried, no error is spent on them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.tree_util import Partial

from dpaudit import _validate
from dpaudit._engine import game as worlds
from dpaudit._engine.game import Game, both_worlds, of_trials, of_worlds, sweep
from dpaudit._engine.sharding import several_processes
from dpaudit.auditing.attacks import choose, distinguish, features, frequencies, learned
from dpaudit.auditing.attacks.features import Distinguisher, Score, flat
from dpaudit.auditing.lint import probe
from dpaudit.auditing.result import Tried
from dpaudit.mechanisms.claim import Claim, Mechanism

PILOT_BYTES, PILOT_MOST, PILOT_LEAST = 1 << 25, 4096, 16  # of all its releases; pairs
SINGLES, TABLES = 6, 3  # finalists of the family, as they are and by their frequencies
FAR_MORE = 50  # pairs of the pilot for each number of a mean, that it can be judged by the same pairs
SCREENED = 2048  # pairs of the pilot on which finalists are picked
FEATURES, FREQUENCIES, NETWORK, OTHERS = range(4)  # what a score needs to be computed


class Arrays(NamedTuple):
    """All that the finalists' program reads beside the release: data, so that other finalists are the same program."""

    reference: Any  # the leaves of one release
    sight: features.Sight
    singles: Any  # [SINGLES], of the family's numbers
    tables: frequencies.Tables
    listed: Any  # [TABLES], of the numbers, by their frequencies
    sums: Any  # [3, m], which ratios are added up
    patterns: frequencies.Patterns
    network: learned.Network


class Finalist(NamedTuple):
    """A score that the trials set aside choose among.

    Attributes:
      name: for tables.
      fitted: or picked on the pilot, whose trials can therefore not judge it.
      needs: of FEATURES, FREQUENCIES, NETWORK and OTHERS, what it is computed from.
    """

    name: str
    fitted: bool
    needs: tuple[int, ...] = ()


class Portfolio(NamedTuple):
    """The finalists, as a game of several scores.

    Attributes:
      one: the function of a trial's number, -> [2, scores].
      finalists: of each score.
      screened: names of all numbers that the pilot was looked at for, with what they showed there.
      pilot: pairs of trials.
    """

    one: Partial
    finalists: list[Finalist]
    screened: list[tuple[str, float]]
    pilot: int

    def look(
        self, early: np.ndarray, *, delta: float, confidence: float, claim: Claim | None = None
    ) -> list[choose.Seen]:
        """What the trials set aside, [2, n, scores], say of every score; those fitted on the pilot are judged without
        it."""
        return [
            choose.look(
                early[:, self.pilot if one.fitted else 0 :, i], delta=delta, confidence=confidence, claim=claim
            )
            for i, one in enumerate(self.finalists)
        ]

    def tried(self, seen: Sequence[choose.Seen], order: np.ndarray) -> tuple[Tried, ...]:
        """Every attack, the best finalist first, then what the pilot was looked at for."""
        found = [Tried(self.finalists[i].name, seen[i].bound, seen[i].accuracy) for i in map(int, order)]
        known = {one.name for one in found}
        rest = [Tried(name, max(0.0, shown), None) for name, shown in self.screened if name not in known]
        return (*found, *sorted(rest, key=lambda one: -one.bound))

    def narrowed(self, game: Game, number: int) -> Game:
        """The same program, which leaves out what the score of this number does not need."""
        wanted = np.isin(np.arange(4), self.finalists[number].needs)
        consts, leaves = game.one.args
        return game._replace(one=Partial(game.one.func, consts, [leaves[0], jnp.asarray(wanted), *leaves[2:]]))


def pilot_pairs(mechanism: Mechanism, x0: Any, aside: int) -> int:
    """How many pairs of trials are read as raw releases: at most half of those set aside, and what memory allows."""
    leaves = jax.tree.leaves(_shapes(mechanism, x0))
    size = sum(4 * leaf.size * max(1, leaf.dtype.itemsize // 4) for leaf in leaves)
    return min(aside // 2, PILOT_MOST, PILOT_BYTES // max(1, 2 * size))


def portfolio(
    fit_key: jax.Array,
    play_key: jax.Array,
    mechanism: Mechanism,
    x0: Any,
    x1: Any,
    attacks: Sequence[Distinguisher],
    *,
    pilot: int,
    delta: float,
    confidence: float,
    batch: int | None,
    mesh: Mesh | None,
) -> Portfolio:
    """Plays the pilot and fits the finalists.

    Args:
      fit_key: for the attacks that are fitted.
      play_key: of the trials, from :func:`game.trial_key`.
      mechanism, x0, x1: what is audited.
      attacks: beside the family.
      pilot: pairs of trials, the first ones.
      delta, confidence: those of the bound.
      batch, mesh: as for :func:`game.sweep`.

    Raises:
      InputError: an attack that raises, cannot be traced, or gives no number.
    """
    others = [] if mechanism.log_prob is None else [distinguish.likelihood_ratio]
    scores = [attack.fit(fit_key, mechanism, x0, x1) for attack in others]
    scores += [_score(attack, jax.random.fold_in(fit_key, i), mechanism, x0, x1) for i, attack in enumerate(attacks)]
    others += attacks
    raw = sweep(
        both_worlds(play_key, lambda key, world: mechanism.apply(key, (x0, x1)[world]), _words),
        pilot,
        batch=batch,
        mesh=mesh,
    )
    shapes = _shapes(mechanism, x0)
    leaves = _leaves(raw, jax.tree.leaves(shapes))
    given = None
    if flat(x0).size == flat(x1).size == sum(leaf.size for leaf in jax.tree.leaves(shapes)):
        given = np.asarray(distinguish.difference(x0, x1), np.float32)
    arrays, shown = _fitted(leaves, given, delta=delta, confidence=confidence)
    if several_processes(mesh):
        arrays, shown = _of_first_process((arrays, shown))
    names = features.names(arrays.sight)
    finalists = [
        *([] if given is None else [Finalist("projection on x1 - x0", False)]),
        Finalist("projection on the difference of means", len(arrays.sight.centre) > pilot / FAR_MORE),
        *(Finalist(names[i], True, (FEATURES,)) for i in arrays.singles),
        *(Finalist(f"frequencies of {names[i]}", True, (FEATURES, FREQUENCIES)) for i in arrays.listed),
        *(Finalist(f"frequencies of {what}", True, (FEATURES, FREQUENCIES)) for what in SUMS),
        Finalist("network", True, (FEATURES, FREQUENCIES, NETWORK)),
        *(Finalist(attack.name, False, (OTHERS,)) for attack in others),
    ]
    one = Partial(
        partial(_one, apply=mechanism.apply, pair=(x0, x1), scores=scores),
        of_worlds(play_key),
        jnp.ones(4, bool),
        jax.tree.map(jnp.asarray, arrays),
    )
    return Portfolio(one, finalists, [(name, float(bound)) for name, bound in zip(names, shown, strict=True)], pilot)


def _of_first_process(tree: Any) -> Any:
    """The arrays of the first process, to the last bit: what is sent is added up, which would turn -0 into 0."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [np.ascontiguousarray(leaf) for leaf in leaves]
    sizes = [leaf.nbytes for leaf in leaves]
    whole = b"".join(leaf.tobytes() for leaf in leaves)
    words = np.frombuffer(whole + bytes(-len(whole) % 4), np.int32)
    told = np.asarray(multihost_utils.broadcast_one_to_all(words)).tobytes()
    ends = np.cumsum(sizes)
    parts = [
        np.frombuffer(told[end - size : end], leaf.dtype).reshape(leaf.shape)
        for leaf, size, end in zip(leaves, sizes, ends, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


SUMS = ("all coordinates", "all lowest bits", "whole releases")


def _one(
    bases: jax.Array,
    wanted: jax.Array,
    arrays: Arrays,
    trial: jax.Array,
    *,
    apply: Callable[..., Any],
    pair: tuple[Any, Any],
    scores: Sequence[Score],
) -> jax.Array:
    """The scores of a trial in both worlds, [2, scores]; those that are not wanted are 0."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(bases, trial)

    def of(world: int) -> Callable[[jax.Array], jax.Array]:
        return lambda key: _seen(apply(key, pair[world]), wanted, arrays, scores)

    seen = worlds.both((of(0), of(1)), keys)  # the rest is one program for both: less to compile
    return jax.vmap(partial(_scores, wanted=wanted, arrays=arrays, others=len(scores)))(seen)


def _seen(release: Any, wanted: jax.Array, arrays: Arrays, others: Sequence[Score]) -> jax.Array:
    """The scores beside the family, and the view of a release, in one vector."""

    def own() -> jax.Array:
        return jnp.stack([jnp.asarray(score(release), jnp.float32) for score in others])

    view = features.view(jnp, [jnp.asarray(leaf) for leaf in jax.tree.leaves(release)], arrays.reference)
    low = _where(wanted[FEATURES], lambda: view.low, len(view.low))
    beside = [_where(wanted[OTHERS], own, len(others))] if others else []
    return jnp.concatenate([*beside, view.numbers, low])


def _scores(seen: jax.Array, *, wanted: jax.Array, arrays: Arrays, others: int) -> jax.Array:
    """What was seen of one release -> its scores."""
    view = features.View(*jnp.split(seen[others:], 2))
    found = [features.project(jnp, view, arrays.sight)]
    singles, listed, m = len(arrays.singles), len(arrays.listed), len(arrays.tables.start)

    def family() -> jax.Array:
        numbers = features.read(jnp, view, arrays.sight)
        k = len(arrays.sight.chosen)

        def ratios() -> jax.Array:
            found = arrays.tables.read(jnp, numbers)
            sums = (arrays.sums * found).sum(-1)
            whole = arrays.patterns.read(jnp, numbers[:k])
            return jnp.concatenate([found, found[arrays.listed], sums, whole[None]])

        of_tables = _where(wanted[FREQUENCIES], ratios, m + listed + len(SUMS))

        def logit() -> jax.Array:
            return arrays.network.read(jnp, numbers, of_tables[:m])[None]

        return jnp.concatenate([numbers[arrays.singles], of_tables[m:], _where(wanted[NETWORK], logit, 1)])

    found.append(_where(wanted[FEATURES], family, singles + listed + len(SUMS) + 1))
    return jnp.concatenate([part.astype(jnp.float32) for part in (*found, seen[:others])])


def _where(wanted: jax.Array, compute: Callable[[], jax.Array], size: int) -> jax.Array:
    """What ``compute`` gives, [size], or zeros: the decision is one for all trials, so it is not computed then."""
    return jax.lax.cond(wanted, lambda: compute().astype(jnp.float32), lambda: jnp.zeros(size))


def _fitted(leaves: list[np.ndarray], given: Any, *, delta: float, confidence: float) -> tuple[Arrays, np.ndarray]:
    """The finalists' arrays, and what each number of the family showed on the pilot."""
    reference = [leaf[0, 0] for leaf in leaves]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        views = features.view(np, leaves, reference, lead=2)
        sight = features.sight(views, given)
        numbers = features.read(np, views, sight)
        tables, ratios = frequencies.tables(numbers)
        k, m = len(sight.chosen), numbers.shape[-1]
        few = slice(0, SCREENED)
        shown = choose.screen(numbers[:, few], delta=delta, confidence=confidence)
        by_table = choose.screen(ratios[:, few], delta=delta, confidence=confidence)
        sums = np.zeros((len(SUMS) - 1, m), np.float32)
        sums[0, :k], sums[1, k : 2 * k] = 1, 1
        order = np.argsort(-np.maximum(shown, by_table), kind="stable")
        first = np.arange(min(k, learned.INPUTS // 2))  # coordinates that tell nothing alone may do so together
        net = learned.fitted_network(numbers, ratios, np.concatenate([first, order[~np.isin(order, first)]]))
    arrays = Arrays(
        reference,
        sight,
        np.argsort(-shown, kind="stable")[:SINGLES].astype(np.int32),
        tables,
        np.argsort(-by_table, kind="stable")[:TABLES].astype(np.int32),
        sums,
        frequencies.patterns(numbers[..., :k]),
        net,
    )
    return arrays, shown


def _shapes(mechanism: Mechanism, x0: Any) -> Any:
    return jax.eval_shape(lambda key: jax.tree.map(jnp.asarray, mechanism.apply(key, x0)), of_trials())


def _words(release: Any) -> jax.Array:
    """All bits of a release as int32 words."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(release)]
    wide = [leaf.astype(_whole_words(leaf.dtype)) for leaf in leaves]
    return jnp.concatenate([jax.lax.bitcast_convert_type(leaf, jnp.int32).reshape(-1) for leaf in wide])


def _whole_words(kind: np.dtype) -> np.dtype:
    """The type, or one of 32 bits that holds all its numbers."""
    if kind.itemsize >= 4:
        return kind
    return np.dtype(np.float32 if jnp.issubdtype(kind, jnp.floating) else np.int32)


def _leaves(words: np.ndarray, shapes: Sequence[Any]) -> list[np.ndarray]:
    """The arrays [2, n, ...] of which :func:`_words` made words [n, 2, ...]."""
    words, found, place = np.moveaxis(words, 1, 0), [], 0
    for shape in shapes:
        kind = _whole_words(shape.dtype)
        size = shape.size * kind.itemsize // 4
        part = np.ascontiguousarray(words[..., place : place + size]).view(kind)
        found.append(part.reshape(*part.shape[:2], *shape.shape).astype(shape.dtype))
        place += size
    return found


def _score(attack: Distinguisher, key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    """The fitted score of an attack beside the family.

    Raises:
      InputError: one that raises, cannot be traced, or gives no number.
    """
    name = attack.name
    try:
        score = attack.fit(key, mechanism, x0, x1)
        found = jax.eval_shape(score, _shapes(mechanism, x0))
    except _validate.InputError:
        raise
    except probe.NOT_JITTABLE as error:
        wanted = "scores that jax.jit can trace"
        raise _validate.InputError(
            f"attacks: expected {wanted}, got {name}, which needs a number ({type(error).__name__})"
        ) from None
    except Exception as error:
        cause = _validate.one_line(f"{type(error).__name__}: {error}")
        raise _validate.InputError(
            f"attacks: expected a score of every release, got {cause} (raised by {name})"
        ) from None
    if getattr(found, "shape", None) != () or (not jnp.issubdtype(found.dtype, jnp.number) and found.dtype != bool):
        shape = f"shape {list(found.shape)}" if hasattr(found, "shape") else type(found).__name__
        raise _validate.InputError(f"attacks: expected one number for each release, got {shape} (from {name})")
    return score
