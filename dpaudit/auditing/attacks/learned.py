"""Trains a small neural network to tell the worlds apart, for mechanisms whose leak is unknown."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit._engine.game import play
from dpaudit.auditing.attacks.base import Distinguisher, Score, flat, release_reader
from dpaudit.mechanisms.claim import Mechanism

BATCH = 256  # releases of each world in a step
FARTHEST = 100.0  # standard deviations; a release beyond them would dominate a whole step
ATOM_SAMPLE, ATOM_LEAST, ATOMS = 512, 5, 8  # a value is an atom if 5 of 512 releases have it; 8 are kept


class Reading(NamedTuple):
    """How the network reads a release: the scale of every number, and the values that count as symbols."""

    mean: jax.Array  # [d]
    spread: jax.Array  # [d]
    atoms: jax.Array  # [k, d]; NaN where a coordinate has fewer than k
    missing: jax.Array  # [m], the coordinates that are NaN at times

    def features(self, releases: jax.Array) -> jax.Array:
        """Maps releases [..., d] to [..., d + k d + m]: numbers standardised, and 0 where the value is an atom or NaN;
        which atom it is; whether it is NaN."""
        same = releases[..., None, :] == self.atoms
        absent = jnp.isnan(releases)
        scaled = jnp.clip((releases - self.mean) / self.spread, -FARTHEST, FARTHEST)
        scaled = jnp.where(same.any(-2) | absent, 0.0, scaled)
        symbols = (same.reshape(*same.shape[:-2], -1), absent[..., self.missing])
        return jnp.concatenate([scaled, *(symbol.astype(scaled.dtype) for symbol in symbols)], -1)


def distinguisher(*, trials: int = 4096, steps: int = 1000, layers: int = 2, hidden: int = 64) -> Distinguisher:
    """Makes a distinguisher of a neural network that is trained before the audit, on separate releases.

    The network minimises the binary cross-entropy of the world given the release, so that its logit tends to the log
    likelihood ratio ln p(release | x1) - ln p(release | x0), the optimal score (Neyman-Pearson). Nothing is used
    twice: the releases it is trained on are drawn from the fit's key, the threshold is chosen on the first of the
    trials that the audit plays, and the bound is computed on the rest.

    A value that a coordinate takes repeatedly (a category, an "aborted", a clipped end, NaN) is read as a symbol
    rather than as a size.

    A leak of epsilon per release shows in the logit only when ``256 steps`` and ``trials`` exceed the number of
    weights over epsilon^2: small epsilons need many trials and few weights.

    Args:
      trials: training releases of each world; all of them are held in memory.
      steps: Adam steps, on 256 releases of each world.
      layers: hidden layers; 0 is logistic regression.
      hidden: width of a hidden layer.

    Returns:
      A :class:`Distinguisher` with threshold None.

    Raises:
      InputError: a number below 1 (layers: below 0).
    """
    sizes = {"trials": trials, "steps": steps, "hidden": hidden}
    for name, size in sizes.items():
        _validate.at_least(1, **{name: size})
    sizes["layers"] = _validate.at_least(0, layers=layers)
    return Distinguisher(partial(_fit, **sizes), None, "learned" if layers else "learned, linear")


def _fit(
    key: jax.Array,
    mechanism: Mechanism,
    x0: Any,
    x1: Any,
    *,
    trials: int,
    steps: int,
    layers: int,
    hidden: int,
) -> Score:
    pilot_key, train_key = jax.random.split(key)
    read = release_reader(pilot_key, mechanism, x0)
    pilot = play(pilot_key, lambda key, world: mechanism.apply(key, (x0, x1)[world]), read, trials)  # [2, trials, d]
    score = train(train_key, jnp.asarray(pilot), steps=steps, batch=BATCH, layers=layers, hidden=hidden)
    return lambda release: score(read(release))


def train(key: jax.Array, releases: jax.Array, *, steps: int, batch: int, layers: int, hidden: int) -> Score:
    """Trains the score of :func:`distinguisher` on releases that were drawn already.

    Args:
      key: a jax.random key, consumed.
      releases: [2, trials, d], one row per world; no bound may count them.
      batch: releases of each world in a step.
      steps, layers, hidden: as for :func:`distinguisher`.
    """
    from dpaudit.auditing.attacks.classifier import Classifier, fitted  # Flax and Optax take long to import

    reading, network = _reading(releases), Classifier(layers, hidden)
    parameters = fitted(key, releases, reading, network=network, steps=steps, batch=batch)

    def score(release: Any) -> jax.Array:
        return network.apply(parameters, reading.features(flat(release)))  # pyright: ignore

    return score


def _reading(releases: jax.Array) -> Reading:
    """Measures how to read the releases [2, trials, d]: scale, repeated values, and coordinates that can be NaN."""
    sample = np.sort(np.concatenate(np.asarray(releases[:, : ATOM_SAMPLE // 2])), axis=0)
    atoms = [_atoms(column) for column in sample.T]
    padded = np.full((max(map(len, atoms)), len(atoms)), np.nan)
    for coordinate, values in enumerate(atoms):
        padded[: len(values), coordinate] = values
    atoms = jnp.asarray(padded, releases.dtype)
    missing = np.flatnonzero(np.isnan(np.asarray(releases)).any((0, 1)))
    mean, spread = _measured(releases, atoms)
    return Reading(mean, spread, atoms, jnp.asarray(missing, jnp.int32))


@jax.jit
def _measured(releases: jax.Array, atoms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (mean, standard deviation) of every coordinate, over its values that are finite and not atoms."""
    sizes = jnp.isfinite(releases) & (releases[..., None, :] != atoms).all(-2)
    mean, spread = (jnp.nan_to_num(of(releases, axis=(0, 1), where=sizes)) for of in (jnp.mean, jnp.std))
    return mean, jnp.where(spread > 0, spread, 1.0)


def _atoms(column: np.ndarray) -> np.ndarray:
    """Returns the commonest values of a sorted column, those that occur too often to be chance."""
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    common = np.argsort(-counts, kind="stable")[:ATOMS]
    return values[common[counts[common] >= ATOM_LEAST]]


learned = distinguisher()
"""A small network, trained on 4,096 releases of each world that no bound will count: finds leaks that are no shift, in
a variance or a pattern, and needs no density."""
