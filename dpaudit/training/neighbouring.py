"""Makes neighbouring data sets D and D' = D + {target}: the four targets of paper 003, one training for both worlds.

    members, shadow = split(split_key, len(images), members=n + 1, shadow=s)
    shadows = train_many(...)  # ten networks by the audited training, on images[shadow]
    first, third = random_target(key, images, labels, members), hardest_target(loss, shadows, images, labels, members)
    second, fourth = perturbed(loss, shadows, first), perturbed(loss, shadows, third)

    rows, sampling = first.rows(images, labels), poisson(len(members), batch_size)
    trainer = dp_sgd(weighted(lambda params, example, key: loss(params, *example, key)), dropout=True, ...)

    def run(key, present):
        return train(key, trainer, trainer.init(params), world(rows, present), sampling, steps)[0].params

    networks = train_many(run, (keys, coins))  # of both worlds together

A loss is ``loss(params, image, label) -> scalar`` of ONE example, such as ``models.cross_entropy(model)``; shadow
models are run without dropout, on which the paper is silent. Calls with the same function share a compiled program. D'
is drawn first for all four: a random record of D' is a random one outside D, which is the rest.

Source: paper 003, Section 3.2.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpaudit import _validate
from dpaudit.training.forms import quick

Loss = Callable[..., jax.Array]

RANDOM, RANDOM_PERTURBED, HARDEST, HARDEST_PERTURBED = 1, 2, 3, 4  # as the paper numbers its data sets


class Rows(NamedTuple):
    """The rows that both worlds train on; the last one is present or absent."""

    records: Any  # pytree, leaves [n + 1, ...]
    present: jax.Array  # [n + 1], 1 or 0: a row that is absent has no gradient


class Split(NamedTuple):
    """Rows of the data, in ascending order; no row is in both."""

    members: np.ndarray  # [m], D': D and the future target
    shadow: np.ndarray  # [s], the training data of shadow models


class Neighbours(NamedTuple):
    """D and D', which differ in the target alone."""

    kept: np.ndarray  # [n], the rows of the data that are D
    image: np.ndarray  # [...], of the target
    label: int  # of the target
    origin: int  # the row of the data that the target is, or was before it was perturbed; not in ``kept``
    number: int  # 1 to 4, as in the paper

    def rows(self, images: Any, labels: Any) -> Rows:
        """Returns D' from the data that it was made of."""
        return with_target((images[self.kept], labels[self.kept]), (self.image, self.label))


def with_target(data: Any, target: Any) -> Rows:
    """Returns D' as rows: those of D, then the target.

    Args:
      data: pytree with leaves [n, ...].
      target: one example of it, leaves [...].
    """
    records = jax.tree.map(lambda leaf, own: jnp.concatenate([leaf, jnp.asarray(own)[None]]), data, target)
    return Rows(records, jnp.ones(len(jax.tree.leaves(records)[0])))


def world(rows: Rows, present: Any) -> Rows:
    """Returns D where ``present`` is 0, D' where it is 1; it may be traced, so one program trains in both worlds."""
    return rows._replace(present=rows.present.at[-1].set(present))


def weighted(loss_fn: Loss) -> Loss:
    """Returns the loss of one of :class:`Rows`: that of an absent row is 0, and so is its gradient.

    A row is sampled whether it is present or not, so both worlds draw the same batches and the same noise from a key.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``, or ``loss_fn(params, example, key)``.
    """
    return lambda params, row, *key: row.present * loss_fn(params, row.records, *key)


def split(key: jax.Array, records: int, *, members: int, shadow: int) -> Split:
    """Draws D' and the shadow models' data from the rows 0 .. records - 1, without a row in common.

    Args:
      key: JAX random key, consumed.
      records: number of rows.
      members: size of D', >= 2.
      shadow: rows for shadow models, >= 1.

    Raises:
      InputError: a size out of range; more rows than there are.

    Source: paper 003, Section 3.2 (shadow models are trained on data other than D).
    """
    members, shadow = _validate.at_least(2, members=members), _validate.at_least(1, shadow=shadow)
    if members + shadow > (records := _validate.at_least(1, records=records)):
        raise _validate.expected("members + shadow", f"at most {records}, the number of records", members + shadow)
    order = np.asarray(jax.random.permutation(_validate.key(key=key), records))
    return Split(np.sort(order[:members]), np.sort(order[members : members + shadow]))


def random_target(key: jax.Array, images: Any, labels: Any, members: Any) -> Neighbours:
    """Makes data set 1: the target is a random record, easy to learn.

    Args:
      key: JAX random key, consumed.
      images: [N, ...].
      labels: [N].
      members: [m], the rows of D', all different, m >= 2.

    Raises:
      InputError: shapes that do not fit; members that are not such rows.

    Source: paper 003, Section 3.2.
    """
    members = _members(images, labels, members)
    chosen = int(jax.random.randint(_validate.key(key=key), (), 0, len(members)))
    return _without(members, chosen, images, labels, RANDOM)


def hardest_target(
    loss: Loss, shadows: Any, images: Any, labels: Any, members: Any, *, batch_size: int = 16
) -> Neighbours:
    """Makes data set 3: the target is the record of D' with the largest mean loss, the first of several.

    (x', y') = argmax_{(x, y) in D'} 1/n sum_j loss(theta_j, x, y)

    Args:
      loss, shadows, batch_size: as for :func:`losses`.
      images, labels, members: as for :func:`random_target`.

    Raises:
      InputError: as for both; a loss that is not finite.

    Source: paper 003, Section 3.2.
    """
    members = _members(images, labels, members)
    found = _validate.finite(losses=losses(loss, shadows, images, labels, members, batch_size=batch_size))
    return _without(members, int(found.mean(axis=0, dtype=np.float64).argmax()), images, labels, HARDEST)


def perturbed(loss: Loss, shadows: Any, pair: Neighbours, *, steps: int = 40, step_size: float = 0.01) -> Neighbours:
    """Makes data set 2 from 1, and 4 from 3: the same D, the target under adversarial noise, unlike any other record.

    Args:
      loss, shadows, steps, step_size: as for :func:`adversarial`.
      pair: from :func:`random_target` or :func:`hardest_target`.

    Raises:
      InputError: as for :func:`adversarial`; a target that was perturbed before; noise that is not finite.

    Source: paper 003, Section 3.2.
    """
    if pair.number not in (RANDOM, HARDEST):
        raise _validate.expected("pair", "data set 1 or 3, whose target has no noise", f"data set {pair.number}")
    image = adversarial(loss, shadows, pair.image, pair.label, steps=steps, step_size=step_size)
    return pair._replace(image=np.asarray(_validate.finite(noise=image)), number=pair.number + 1)


def adversarial(
    loss: Loss, shadows: Any, image: Any, label: Any, *, steps: int = 40, step_size: float = 0.01
) -> jax.Array:
    """Perturbs an image by ``steps`` steps x <- x + alpha sign(1/n sum_j grad_x loss(theta_j, x, y)), sign(0) = 0.

    The noise has no bound and, as in the paper, **nothing is clipped to the range of pixels**: from an image in [0, 1]
    the defaults make one in [-0.4, 1.4], which networks take unchanged and only a picture has to clip.

    Args:
      loss: ``loss(params, image, label) -> scalar``.
      shadows: parameters of n >= 1 shadow models, leaves [n, ...].
      image: [...], floating-point.
      label: of the image, kept.
      steps: >= 1.
      step_size: alpha > 0, in units of a pixel.

    Returns:
      [...], like the image.

    Raises:
      InputError: a value out of range.

    Source: paper 003, Eq. (8), with its 40 steps of 0.01 against n = 10.
    """
    shadows = _stacked(shadows)
    if not jnp.issubdtype(jnp.result_type(image), jnp.floating):
        raise _validate.expected("image", "floating-point pixels", f"{jnp.result_type(image)}")
    steps = _validate.at_least(1, steps=steps)
    _validate.positive(step_size=step_size)
    return _ascended(shadows, image, label, step_size, loss=loss, steps=steps)


def losses(loss: Loss, shadows: Any, images: Any, labels: Any, rows: Any, *, batch_size: int = 16) -> np.ndarray:
    """Computes the losses of m rows of the data under n shadow models: [n, m].

    Args:
      loss, shadows: as for :func:`adversarial`.
      images: [N, ...].
      labels: [N].
      rows: [m] integers, m >= 1.
      batch_size: records on the device at a time, under one model at a time; the default suits a CPU's caches, an
        accelerator is faster with more.

    Raises:
      InputError: a value out of range; rows that the data do not have.
    """
    shadows = _stacked(shadows)
    batch_size = _validate.at_least(1, batch_size=batch_size)
    rows = _validate.vector(rows=np.asarray(rows))
    if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(images):
        raise _validate.expected("rows", f"whole numbers in 0..{len(images) - 1}", rows)  # JAX would read the last row
    parts = [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]
    found = [np.asarray(_losses(shadows, images[part], labels[part], loss=loss)) for part in parts]
    return np.concatenate(found, axis=1)


@partial(jax.jit, static_argnames=("loss", "steps"))
def _ascended(shadows: Any, image: Any, label: Any, step_size: Any, *, loss: Loss, steps: int) -> jax.Array:
    def mean_loss(x: jax.Array) -> jax.Array:
        return jax.vmap(lambda params: quick(loss)(params, x, label))(shadows).mean()

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + (step_size * jnp.sign(jax.grad(mean_loss)(x))).astype(x.dtype), None

    return lax.scan(step, jnp.asarray(image), None, length=steps)[0]


@partial(jax.jit, static_argnames="loss")
def _losses(shadows: Any, images: Any, labels: Any, *, loss: Loss) -> jax.Array:
    return lax.map(lambda params: jax.vmap(quick(loss), (None, 0, 0))(params, images, labels), shadows)


def _without(members: np.ndarray, chosen: int, images: Any, labels: Any, number: int) -> Neighbours:
    """Divides D' into D and the target."""
    origin = int(members[chosen])
    return Neighbours(np.delete(members, chosen), np.asarray(images[origin]), int(labels[origin]), origin, number)


def _members(images: Any, labels: Any, members: Any) -> np.ndarray:
    if jnp.shape(labels) != jnp.shape(images)[:1]:
        raise _validate.expected("labels", f"shape [{len(images)}], one per image", f"shape {list(jnp.shape(labels))}")
    members = np.asarray(members)
    if members.ndim != 1 or len(members) < 2 or members.dtype.kind not in "iu":
        wanted = "an array of shape [m] of whole numbers, m >= 2"
        raise _validate.expected("members", wanted, f"{members.dtype} of shape {list(members.shape)}")
    if members.min() < 0 or members.max() >= len(images) or len(np.unique(members)) < len(members):
        raise _validate.expected("members", f"different rows in 0..{len(images) - 1}", members)
    return members


def _stacked(shadows: Any) -> Any:
    """Returns the shadow models' parameters on the device, checked."""
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(shadows)}
    if len(lengths) != 1 or lengths in ({()}, {(0,)}):
        wanted = "leaves with one leading axis of n >= 1 shadow models"
        raise _validate.expected("shadows", wanted, sorted(map(list, lengths)))
    return jax.tree.map(jnp.asarray, shadows)
