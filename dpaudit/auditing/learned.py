"""A small network that learns to tell the worlds apart, where nobody knows what leaks."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpaudit import check
from dpaudit.auditing.attack import Distinguisher, Score, flat
from dpaudit.auditing.game import play
from dpaudit.mechanisms.claim import Mechanism

BATCH = 256  # releases of each world in a step
RATE = 1e-2  # of Adam at the first step; a cosine takes it to 0
FARTHEST = 100.0  # standard deviations; beyond them one release would rule a whole step


class Classifier(nn.Module):
    """Standardised releases [..., d] -> logits [...] of world 1: two hidden layers."""

    hidden: int

    @nn.compact
    def __call__(self, releases: jax.Array) -> jax.Array:
        for _ in range(2):
            releases = nn.relu(nn.Dense(self.hidden)(releases))
        return nn.Dense(1)(releases)[..., 0]


def distinguisher(*, trials: int = 4096, steps: int = 1000, hidden: int = 64) -> Distinguisher:
    """A distinguisher that is a neural network, trained before the audit on releases of its own.

    The network minimises the binary cross-entropy of the world given the release, so that its logit tends to the log
    likelihood ratio ln p(release | x1) - ln p(release | x0), the optimal score (Neyman-Pearson). Nothing is used
    twice: the releases it is trained on are drawn from the fit's key, the threshold is chosen on the first of the
    trials that the audit plays, and the bound is computed on the rest.

    Args:
      trials: training releases of each world; all of them are held in memory.
      steps: Adam steps.
      hidden: width of both hidden layers.

    Returns:
      A :class:`Distinguisher` with threshold None.

    Raises:
      InputError: a number below 1; on fitting, a release that is not a number.
    """
    sizes = {"trials": trials, "steps": steps, "hidden": hidden}
    for name, size in sizes.items():
        check.at_least(1, **{name: size})
    return Distinguisher(partial(_fit, **sizes), None, "learned")


def _fit(key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any, *, trials: int, steps: int, hidden: int) -> Score:
    pilot_key, train_key = jax.random.split(key)
    pilot = play(pilot_key, lambda key, world: mechanism.apply(key, (x0, x1)[world]), flat, trials)  # [2, trials, d]
    if np.isnan(pilot).any():
        bad = int(np.isnan(pilot).any(-1).sum())
        raise check.expected("mechanism", "releases of numbers", f"NaN in {bad} of {2 * trials}")
    releases = jnp.asarray(pilot)
    finite = jnp.isfinite(releases)
    mean, spread = (jnp.nan_to_num(of(releases, axis=(0, 1), where=finite)) for of in (jnp.mean, jnp.std))
    spread = jnp.where(spread > 0, spread, 1.0)

    def standardised(releases: jax.Array) -> jax.Array:
        return jnp.clip((releases - mean) / spread, -FARTHEST, FARTHEST)

    parameters = _train(train_key, standardised(releases), steps=steps, hidden=hidden)

    def score(release: Any) -> jax.Array:
        return Classifier(hidden).apply(parameters, standardised(flat(release)))  # pyright: ignore

    return score


@partial(jax.jit, static_argnames=("steps", "hidden"))
def _train(key: jax.Array, releases: jax.Array, *, steps: int, hidden: int) -> Any:
    """releases [2, trials, d], one row per world -> the network's parameters."""
    network, optimizer = Classifier(hidden), optax.adam(optax.cosine_decay_schedule(RATE, steps))
    init_key, batch_key = jax.random.split(key)
    worlds = jnp.arange(2)[:, None]

    def loss(parameters: Any, batch: jax.Array) -> jax.Array:
        logits = jnp.asarray(network.apply(parameters, batch))  # [2, BATCH]
        return optax.sigmoid_binary_cross_entropy(logits, jnp.broadcast_to(worlds, logits.shape)).mean()

    def step(state: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        parameters, moments = state
        chosen = jax.random.randint(key, (2, BATCH), 0, releases.shape[1])
        updates, moments = optimizer.update(jax.grad(loss)(parameters, releases[worlds, chosen]), moments)
        return (optax.apply_updates(parameters, updates), moments), None

    parameters = network.init(init_key, releases[0, 0])
    (parameters, _), _ = jax.lax.scan(
        step, (parameters, optimizer.init(parameters)), jax.random.split(batch_key, steps)
    )
    return parameters


learned = distinguisher()
"""A small network, trained on 4,096 releases of each world that no bound will count: finds leaks that are no shift, in
a variance or a pattern, and needs no density."""
