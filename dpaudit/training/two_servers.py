"""Trains one model by owners whose gradients only two servers' noisy sums reveal (paper 001).

In each step every owner clips the gradient of each example of its batch, rounds it to whole numbers, adds them up and
sends shares of the sum to the two servers (:mod:`dpaudit.secure`). All owners read the same opened sum, divide it by
the number of examples and update their own copy of the model. Nobody but the owner sees its records or gradients.

An owner that was killed goes on from its checkpoint: it reads the sums of the steps since then from the servers, sends
the very shares of the step in progress that it had made, and arrives at the same model. Copies of the model on
machines whose floating-point results differ may drift apart in their last digits; each owner's gradients remain
clipped.
"""

import hashlib
import math
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from dpaudit import _validate
from dpaudit._engine.checkpoint import Checkpoint
from dpaudit._engine.fingerprint import digest, program, raw
from dpaudit.secure.channel import checked_seconds
from dpaudit.secure.noise import accounting
from dpaudit.secure.noise.binomial import Binomial
from dpaudit.secure.protocol import agreement
from dpaudit.secure.protocol.agreement import BudgetSpent, Terms
from dpaudit.secure.protocol.fixed_point import clipped_sum, dequantize
from dpaudit.secure.service.owner import Owner
from dpaudit.secure.service.records import Opened
from dpaudit.training import per_example
from dpaudit.training.forms import quick

TOGETHER = 1 << 20  # coordinates of gradients that are held at a time: 4 MiB of float32


class Task(NamedTuple):
    """What a training learns, the same for all owners but for the records.

    Attributes:
      loss: ``loss(params, example) -> scalar`` of ONE example, as for ``jax.grad``.
      initial: pytree of floating-point arrays, the parameters at the start.
      records: ``records(owner) -> pytree`` whose leaves have a leading axis of that owner's examples; it is called
        for the owners of this process alone.
      optimizer: takes the noisy mean gradient of a step.
      measure: ``measure(params) -> {name: number}`` for the progress and the report, such as an accuracy on public
        test data. Use no owner's records: what it returns is published without noise.
    """

    loss: Callable[[Any, Any], Any]
    initial: Any
    records: Callable[[str], Any]
    optimizer: optax.GradientTransformation
    measure: Callable[[Any], dict[str, float]] | None = None


class Progress(NamedTuple):
    """How far one owner's training is.

    Attributes:
      step: completed steps.
      releases: openings begun by the servers, of which some may have failed.
      epsilon: spent on an example that was in every one of them, at the training's delta.
      opened: the result of the last step.
    """

    step: int
    releases: int
    epsilon: float
    opened: Opened


class Spending:
    """Computes the epsilon that a training's openings have spent, with or without a budget in its terms.

    Args:
      terms: of the training.
      steps: how many the training is to take.
      delta: of the result; the terms' own where they have a budget.
    """

    def __init__(self, terms: Terms, steps: int, delta: float) -> None:
        self._terms, self._most = terms, max(steps, terms.openings)
        self.delta = terms.delta if terms.openings else _validate.open_unit(delta=delta)

    @cached_property
    def _curve(self) -> accounting.Spent:
        terms = self._terms
        trimmed = accounting.TRIMMED * self.delta / self._most
        law = Binomial(terms.coins, terms.step_bits)
        return accounting.spent(law, sensitivity=2 * terms.levels, dimension=terms.dimension, trimmed=trimmed)

    def epsilon(self, openings: int) -> float:
        """Returns epsilon in nats for a replaced record; infinite without noise or with noise from a table."""
        if self._terms.noise != "binomial":
            return math.inf if openings else 0.0
        return accounting.composed(self._curve, openings, self.delta)


class Model:
    """One owner's copy of the model: its parameters, and the optimizer's state.

    Args:
      task: of the training.
      terms: of the training; their dimension must be the number of parameters.

    Attributes:
      params: the parameters, a pytree as ``task.initial``.
    """

    def __init__(self, task: Task, terms: Terms) -> None:
        flat, self._restore = ravel_pytree(task.initial)
        if flat.size != terms.dimension:
            raise _validate.expected("dimension", f"{flat.size}, the number of parameters", terms.dimension)
        self._scale, self._flat = terms.scale, flat
        self._state = task.optimizer.init(self.params)

        def gradients(flat: jax.Array, batch: Any) -> list[jax.Array]:
            params = self._restore(flat)
            jax.eval_shape(partial(per_example.clipped_sum, task.loss, clip_norm=terms.clip_norm), params, batch)
            one = jax.grad(quick(task.loss))
            return jax.tree.leaves(jax.vmap(one, in_axes=(None, 0))(params, batch))

        def update(flat: jax.Array, state: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
            params = self._restore(flat)
            change, state = task.optimizer.update(self._restore(gradient.astype(flat.dtype)), state, params)
            return ravel_pytree(optax.apply_updates(params, change))[0], state

        self._gradients = jax.jit(gradients)  # refuses what that sum refuses
        self._update = jax.jit(update)

    @property
    def params(self) -> Any:
        """The parameters, a pytree as ``task.initial``."""
        return self._restore(self._flat)

    def contribution(self, batch: Any) -> np.ndarray:
        """Adds up the examples' clipped gradients as whole numbers: int64 [d].

        Args:
          batch: pytree whose leaves have a leading axis of examples; their number should seldom change, as JAX
            compiles for each.
        """
        count = len(jax.tree.leaves(batch)[0])
        most = max(1, TOGETHER // self._flat.size)
        size = next(n for n in range(min(most, count), 0, -1) if count % n == 0)
        total = np.zeros(self._flat.size, np.int64)
        for start in range(0, count, size):
            part = jax.tree.map(lambda leaf, start=start: leaf[start : start + size], batch)
            total += clipped_sum([np.asarray(leaf) for leaf in self._gradients(self._flat, part)], self._scale)
        return total

    def learn(self, total: np.ndarray, examples: int) -> None:
        """Updates the parameters by a step's opened sum, int64 [d], of so many examples."""
        mean = dequantize(total, self._scale) / examples
        self._flat, self._state = self._update(self._flat, self._state, jnp.asarray(mean, jnp.float32))

    def program(self, batch: Any) -> str:
        """Identifies what a step computes from a batch: the gradients of the loss, and the optimizer's update."""

        def step(flat: jax.Array, state: Any, batch: Any) -> Any:
            return self._gradients(flat, batch), self._update(flat, state, flat.astype(jnp.float32))

        return digest(program(jax.make_jaxpr(step)(self._flat, self._state, batch)))

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns all numbers of the model, by name."""
        leaves = {f"state{place}": leaf for place, leaf in enumerate(jax.tree.leaves(self._state))}
        return {name: np.asarray(leaf) for name, leaf in ({"params": self._flat} | leaves).items()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Puts back what :meth:`arrays` returned; InputError for arrays of another optimizer."""
        leaves, shape = jax.tree.flatten(self._state)
        if (own := self.arrays()).keys() != arrays.keys():
            raise _validate.expected("checkpoint", f"the arrays {', '.join(own)}", ", ".join(arrays))
        read = {name: jnp.asarray(held.view(own[name].dtype)) for name, held in arrays.items()}  # bfloat16 has no name
        self._flat = read["params"]
        self._state = jax.tree.unflatten(shape, [read[f"state{at}"] for at in range(len(leaves))])


def batches(count: int, size: int, seed: int, owner: str) -> Callable[[int], np.ndarray]:
    """Returns ``rows(step) -> [size]``: which of an owner's records are in its batch of a step, from 1.

    Every epoch is a permutation of its own, of which a last incomplete batch is left out. The choice is no secret, as
    the accounting assumes that an example may be in every step.

    Args:
      count: the owner's records.
      size: of a batch.
      seed, owner: determine the permutations.

    Raises:
      InputError: fewer records than a batch has.
    """
    _validate.at_least(1, batch_size=size)
    if count < size:
        raise _validate.expected("batch_size", f"at most {count}, the records of {owner}", size)
    name = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], "little")

    def rows(step: int) -> np.ndarray:
        epoch, place = divmod(step - 1, count // size)
        order = np.random.default_rng([seed, name, epoch]).permutation(count)
        return order[place * size : (place + 1) * size]

    return rows


class Participant:
    """Takes part in a training for one owner.

    Args:
      name: the owner.
      task: what is learned.
      terms: of the training.
      addresses: H1's and H2's, host:port.
      batch_size: examples of this owner in a step; ``terms.examples`` is that of all owners together.
      seed: of the choice of batches.
      folder: where the checkpoint and the shares of the step in progress are kept. A new one is readable by its owner
        alone; in an existing one the shares are, and the checkpoint is like any other file. None to keep nothing.
      patience: seconds to wait for a step's result.
      own, insecure: as for :class:`dpaudit.secure.Owner`.

    Attributes:
      model: this owner's copy.
      step: completed steps.
      owners: those in the sum of the last of them.

    Raises:
      InputError: an argument is unusable, or the folder holds another training.
    """

    def __init__(
        self,
        name: str,
        task: Task,
        terms: Terms,
        addresses: tuple[str, str],
        *,
        batch_size: int,
        seed: int = 0,
        folder: Path | None = None,
        patience: float = 600.0,
        own: Any = None,
        insecure: bool = False,
    ) -> None:
        self.name, self._terms, self._patience = name, terms, checked_seconds(patience=patience)
        self._records = jax.tree.map(np.asarray, task.records(name))
        counts = {len(leaf) for leaf in jax.tree.leaves(self._records)}
        if len(counts) != 1:
            raise _validate.expected("records", f"leaves of one length for {name}", f"lengths {sorted(counts)}")
        self._size, self._rows = batch_size, batches(counts.pop(), batch_size, seed, name)
        if 0 < terms.owner_examples < batch_size:
            raise _validate.expected("batch_size", f"at most {terms.owner_examples}, of one owner", batch_size)
        if batch_size * len(terms.owners) != terms.examples:
            wanted = f"{terms.examples}, the examples of the terms, divided among {len(terms.owners)} owners"
            raise _validate.expected("batch_size", wanted, batch_size)
        self.model, self.step = Model(task, terms), 0
        self.owners: tuple[str, ...] = ()
        self._begun = 0  # openings, by the checkpoint
        self._checkpoint = None
        kept = None
        if folder is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as fault:
                found = f"{fault.strerror}: {folder}"
                raise _validate.expected("folder", "a folder, or a place for one", found) from None
            identity = {"version": "2", "terms": agreement.stated(terms.statement()), "owner": name}
            identity |= {"batches": f"{batch_size}, {seed}", "start": _digest(task.initial)}
            identity |= {"program": self.model.program(self._batch(1)), "data": _digest(self._records)}
            self._checkpoint = Checkpoint(folder / "model.npz", identity, False, "training")
            kept = folder / "shares"
            if arrays := self._checkpoint.restore():
                self.step, self._begun = (int(arrays.pop(name)) for name in ("step", "openings"))
                self.owners = terms.named(arrays.pop("owners").tobytes())
                self.model.restore(arrays)
        self._owner = Owner(name, terms, addresses, own=own, insecure=insecure, kept=kept)

    @property
    def releases(self) -> int:
        """The openings begun in the training, as far as this owner knows; those that failed count, too."""
        return max(self._begun, self._owner.releases)

    def take_part(self) -> Opened:
        """Takes the next step and returns its result.

        Raises:
          InputError: a server refuses, or the budget is spent.
          ChannelError: a server cannot be reached, or there is no result in time.
        """
        step = self.step + 1
        if self._owner.pending < step:  # else an earlier process made the shares, which go out again where they lack
            self._owner.submit(step, self.model.contribution(self._batch(step)), seconds=self._patience)
        opened = self._owner.result(step, seconds=self._patience)
        self.model.learn(opened.values, self._size * len(opened.owners))
        self.step, self.owners = step, opened.owners
        return opened

    def _batch(self, step: int) -> Any:
        rows = self._rows(step)
        return jax.tree.map(lambda leaf: leaf[rows], self._records)

    def save(self) -> None:
        """Writes the checkpoint, if there is a folder for it; InputError if that cannot be written."""
        if self._checkpoint:
            try:
                owners = np.frombuffer(self._terms.names(self.owners), np.uint8)
                told = {"step": np.array(self.step), "openings": np.array(self.releases), "owners": owners}
                self._checkpoint.save(**told, **self.model.arrays())
            except OSError as fault:
                raise _validate.expected("folder", "one to write a checkpoint to", fault) from None

    def run(self, steps: int, every: int, progress: Callable[[Progress], None], spending: Spending) -> str:
        """Takes all remaining steps.

        Args:
          steps: of the whole training.
          every: steps between two checkpoints.
          progress: called after each step.
          spending: computes epsilon.

        Returns:
          Why it ended: "done", or "budget" where the budget was spent before.

        Raises:
          InputError: the checkpoint has more steps.
        """
        if self.step > steps:
            raise _validate.expected("steps", f"at least the {self.step} of the checkpoint", steps)
        while self.step < steps:
            try:
                opened = self.take_part()
            except BudgetSpent:
                self.save()
                return "budget"
            if self.step % every == 0 or self.step == steps:
                self.save()
            progress(Progress(self.step, self.releases, spending.epsilon(self.releases), opened))
        return "done"

    def close(self) -> None:
        """Closes the connections."""
        self._owner.close()


def _digest(tree: Any) -> str:
    return digest(map(raw, jax.tree.leaves(tree)))
