"""Computes clients' updates from the model and their own examples, and the messages that leave the device.

    client = gaussian(gradients(loss_fn), noise_multiplier=1.4042)   # Federated LDP-SGD, paper 002, Algorithm 3

An *update* is what the server should subtract: a client's gradient (FedSGD) or how far local steps moved the model
(FedAvg). A *client* turns updates into messages: unchanged, with Gaussian noise, or by a randomiser such as LDP-SGD.
Both are written for many clients at once, and the server only uses the sum of the messages.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit.mechanisms import ldp_sgd
from dpaudit.mechanisms.claim import Claim, Mechanism
from dpaudit.mechanisms.clipping import einsum, wide
from dpaudit.training import per_example
from dpaudit.training.dp_sgd import add_noise
from dpaudit.training.forms import quick

Loss = Callable[[Any, Any], jax.Array]


class Sent(NamedTuple):
    """The messages of c clients. The server sees ``total`` only; the rest stays on the devices.

    Attributes:
      total: the sum of their messages, a pytree like the parameters, float32 or wider.
      norms: [c], L2 norm of each update before clipping; NaN or infinite where the update is.
      losses: [c], mean loss of each client's examples at the server's model.
    """

    total: Any
    norms: jax.Array
    losses: jax.Array


class Update(NamedTuple):
    """Computes what the server should subtract from its model for each client.

    Attributes:
      clipped_sum: ``clipped_sum(params, batch, clip_norm) -> Sent`` for c clients, batch leaves [c, n, ...]: sum over
        clients of update min(1, C/|update|); clip_norm None clips nothing. A client whose update is not finite adds
        zero.
      each: ``each(params, batch) -> (updates [c, d], losses [c])``, as flat vectors.
    """

    clipped_sum: Callable[[Any, Any, Any], Sent]
    each: Callable[[Any, Any], tuple[jax.Array, jax.Array]]


class Client(NamedTuple):
    """Turns updates into messages.

    Attributes:
      send: ``send(keys [c], params, batch, clip_norm) -> Sent`` for c clients, a key for each, batch leaves
        [c, n, ...].
      noise: ``noise(key, total, clip_norm, clients) -> total``: adds the noise of all messages of a round at once to
        their sum.
    """

    send: Callable[[jax.Array, Any, Any, Any], Sent]
    noise: Callable[[jax.Array, Any, Any, int], Any]


def gradients(loss_fn: Loss) -> Update:
    """Makes the update of FedSGD: the gradient of a client's mean loss, g = (1/n) sum_i grad loss(theta, x_i).

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` of ONE example.

    Raises:
      InputError: a loss that is no function.

    Source: paper 002, Algorithm 2.
    """
    _validate.function(loss_fn=loss_fn)

    def clipped_sum(params: Any, batch: Any, clip_norm: Any) -> Sent:
        count = len(jax.tree.leaves(batch)[0])
        examples = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)
        n = len(jax.tree.leaves(examples)[0]) // count
        total, info = per_example.clipped_sum(
            lambda params, example: loss_fn(params, example) / n,
            params,
            examples,
            clip_norm=1.0 if clip_norm is None else clip_norm,
            group_size=n,
            clipping=_unclipped if clip_norm is None else per_example.flat,
        )
        return Sent(total, info.norms, info.losses)

    def each(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        losses, found = jax.vmap(jax.value_and_grad(_mean(loss_fn)), in_axes=(None, 0))(params, batch)
        return jax.vmap(_flat)(found), losses

    return Update(clipped_sum, each)


def local_training(loss_fn: Loss, optimizer: optax.GradientTransformation, *, steps: int) -> Update:
    """Makes the update of FedAvg: theta - theta_local after ``steps`` steps on a client's own examples.

    It is FedSGD for one step of plain gradient descent and a server that subtracts the mean.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` of ONE example.
      optimizer: the client's, with a fresh state in every round.
      steps: local steps, each on all of the client's examples, >= 1.

    Raises:
      InputError: a value out of range; a loss that is no function; an optimizer that is not of optax.

    Source: McMahan et al. 2017, Algorithm 1 (full local batches); its update as a gradient: Reddi et al. 2021.
    """
    steps = _validate.at_least(1, steps=steps)
    loss = _mean(_validate.function(loss_fn=loss_fn))
    _validate.optimizer(optimizer=optimizer)

    def one(params: Any, examples: Any) -> tuple[jax.Array, jax.Array]:
        def step(carried: Any, _: None) -> tuple[Any, None]:
            local, state = carried
            updates, state = optimizer.update(jax.grad(loss)(local, examples), state, local)
            return (optax.apply_updates(local, updates), state), None

        (local, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), None, length=steps)
        return _flat(jax.tree.map(jnp.subtract, params, local)), loss(params, examples)

    def each(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(one, in_axes=(None, 0))(params, batch)

    def clipped_sum(params: Any, batch: Any, clip_norm: Any) -> Sent:
        updates, losses = each(params, batch)
        norms = jnp.linalg.norm(updates, axis=1)
        factors = jnp.ones_like(norms) if clip_norm is None else per_example.flat(norms[None], clip_norm)[0]
        factors, sound = factors.astype(norms.dtype), jnp.isfinite(norms)
        kept = jnp.where(sound[:, None], updates, 0)
        total = einsum("c,cd->d", jnp.where(sound, factors, 0), kept)
        return Sent(_unflat(params)(total), norms, losses)

    return Update(clipped_sum, each)


def exact(update: Update) -> Client:
    """Makes clients that send their updates unchanged, without clipping or privacy."""

    def send(keys: jax.Array, params: Any, batch: Any, clip_norm: Any) -> Sent:
        return update.clipped_sum(params, batch, None)

    return Client(send, _as_it_is)


def gaussian(update: Update, *, noise_multiplier: Any, each: bool = False) -> Client:
    """Makes clients that clip their update and add N(0, (C noise_multiplier)^2 I): Federated LDP-SGD.

    Two clients' clipped updates are up to 2C apart, so (epsilon, delta)-LDP takes a noise multiplier of twice the
    sigma per unit of sensitivity (:func:`dpaudit.mechanisms.gaussian.noise_std` with ``clip_norm=1``).

    The server uses only the sum of m messages, whose noise is N(0, m (C noise_multiplier)^2 I). By default it is drawn
    once, which is equal in distribution and m times cheaper.

    Args:
      update: :func:`gradients` or :func:`local_training`.
      noise_multiplier: standard deviation of one message's noise over the clip norm, > 0.
      each: whether every client draws its own noise.

    Raises:
      InputError: a value out of range.

    Source: paper 002, Algorithm 3.
    """
    noise_multiplier = _validate.positive(noise_multiplier=noise_multiplier)

    def send(keys: jax.Array, params: Any, batch: Any, clip_norm: Any) -> Sent:
        sent = update.clipped_sum(params, batch, clip_norm)
        if not each:
            return sent

        def add(total: Any, key: jax.Array) -> tuple[Any, None]:
            return add_noise(key, total, clip_norm * noise_multiplier), None

        return sent._replace(total=jax.lax.scan(add, sent.total, keys)[0])

    def noise(key: jax.Array, total: Any, clip_norm: Any, clients: int) -> Any:
        return add_noise(key, total, clip_norm * noise_multiplier * jnp.sqrt(clients))

    return Client(send, _as_it_is if each else noise)


def randomized(update: Update, *, epsilon: float) -> Client:
    """Makes clients that send a unit vector by LDP-SGD of paper 000; the server's estimate of the sum is unbiased.

    A client whose update is not finite randomises the zero vector.

    Args:
      update: :func:`gradients` or :func:`local_training`.
      epsilon: privacy loss in nats of one message.

    Raises:
      InputError: a value out of range.

    Source: paper 000, Algorithms 1 and 2 (:mod:`dpaudit.mechanisms.ldp_sgd`).
    """
    epsilon = _validate.positive(epsilon=epsilon)

    def send(keys: jax.Array, params: Any, batch: Any, clip_norm: Any) -> Sent:
        updates, losses = update.each(params, batch)
        norms = jnp.linalg.norm(updates, axis=1)
        sound = jnp.where(jnp.isfinite(norms)[:, None], updates, 0)
        release = partial(ldp_sgd.randomize, epsilon=epsilon, clip_norm=clip_norm)
        factor = clip_norm * ldp_sgd.unbiasing_factor(updates.shape[1], epsilon=epsilon, clip_norm=1.0)
        releases = jax.vmap(release)(keys, sound)
        return Sent(_unflat(params)(factor * releases.sum(axis=0)), norms, losses)

    return Client(send, _as_it_is)


def message(client: Client, params: Any, clip_norm: float, claim: Claim) -> Mechanism:
    """Returns one client's message as a mechanism of its examples, to be audited from the server's view.

    Args:
      client: as from :func:`gaussian` or :func:`randomized`.
      params: the server's model in that round.
      clip_norm: C in that round.
      claim: the promise of one message.

    Returns:
      A :class:`dpaudit.Mechanism` whose input is a client's examples, leaves [n, ...], and whose release is [d].

    Raises:
      InputError: a clip norm that is not positive.
    """
    clip_norm = _validate.positive(clip_norm=clip_norm)

    def apply(key: jax.Array, examples: Any) -> jax.Array:
        own_key, noise_key = jax.random.split(key)
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], examples)
        sent = client.send(own_key[None], params, batch, clip_norm)
        return _flat(client.noise(noise_key, sent.total, clip_norm, 1))

    return Mechanism(apply, claim)


def _as_it_is(key: jax.Array, total: Any, clip_norm: Any, clients: int) -> Any:
    return total


def _unclipped(norms: jax.Array, clip_norm: Any) -> jax.Array:
    return jnp.ones_like(norms)


def _mean(loss_fn: Loss) -> Loss:
    def mean(params: Any, examples: Any) -> jax.Array:
        return jnp.mean(jax.vmap(quick(loss_fn), in_axes=(None, 0))(params, examples))

    return mean


def _flat(tree: Any) -> jax.Array:
    return ravel_pytree(wide(tree))[0]


def _unflat(params: Any) -> Callable[[jax.Array], Any]:
    return ravel_pytree(wide(params))[1]
