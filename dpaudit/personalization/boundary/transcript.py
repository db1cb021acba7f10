"""Records everything that crossed the boundary, and computes its cost from that record alone."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent

from dpaudit import _validate
from dpaudit._engine import programs
from dpaudit.mechanisms.claim import Claim
from dpaudit.personalization.boundary.budget import mu_squared, spent
from dpaudit.personalization.boundary.processes import DRAW_WORDS, Process, Release
from dpaudit.training.loss_grid import LossAccountant


class Transcript(NamedTuple):
    """Everything that the untrusted server, and so everybody, received. A pytree; ``first + then`` joins two.

    Attributes:
      parts: one for each run: the releases of a round, with a leading axis of rounds. Under ``jax.vmap`` axes of runs
        come before it, and the cost is that of each run separately.
    """

    parts: tuple[tuple[Release, ...], ...]

    def __add__(self, then: "Transcript") -> "Transcript":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Transcript(self.parts + then.parts)

    def values(self, name: str) -> Any:
        """Returns all that the process of this name released, in order, with a leading axis of releases.

        Raises:
          InputError: a name that released nothing.
        """
        found = [release for part in self.parts for release in part if release.process.name == name]
        if not found:
            names = sorted({release.process.name for part in self.parts for release in part})
            raise _validate.expected("name", "one of " + ", ".join(names), name)

        axis = jnp.ndim(found[0].number) - 1
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *(release.value for release in found))

    def event(self) -> DpEvent:
        """Composes the events of the releases, each process once for every time that it was started.

        A process that starts again (with number 0) is independent of its earlier releases and costs in full. If it
        started again with the same key, its noise is not independent, and the transcript is refused.

        Raises:
          InputError: releases of a process that are missing, twice or out of order, or that go on with another object
            of its name, as after a restart; two with the same noise.
        """
        streams = list(self._streams())
        self._refuse_shared_draws()
        return ComposedDpEvent([process.event(length) for process, length in streams])

    def mu(self) -> float:
        """Computes mu of all releases together, which are one Gaussian: mu^2 = sum of mu_k^2.

        Raises:
          InputError: a release that is not Gaussian; releases that :meth:`event` refuses.

        Source: Dong, Roth and Su 2022, Corollary 3.3.
        """
        event = self.event()
        squared = mu_squared(event)
        if squared is None:
            raise _validate.expected("transcript", "only Gaussian events, which have a mu", event)
        return math.sqrt(squared)

    def epsilon(self, delta: float, *, users: int | None = None) -> float:
        """Computes the cost of one user, added or removed: exact if Gaussian, else by loss distributions.

        Args:
          delta: in (0, 1).
          users: the number of users, which the transcript does not contain; with it, a delta above 1/users draws a
            warning.

        Returns:
          epsilon in nats.

        Raises:
          InputError: delta out of range; releases that :meth:`event` refuses.

        Source: :func:`dpaudit.personalization.boundary.budget.spent`.
        """
        _validate.open_unit(delta=delta)
        if users is not None:
            _validate.delta(_validate.at_least(1, users=users), "users", delta=delta)
        return spent(self.event(), delta)

    def draws(self) -> np.ndarray:
        """Returns the fingerprints of all noise, uint32 [..., releases, 4], with axes of mapped runs in front."""
        found = [np.asarray(release.draw) for part in self.parts for release in part]
        if not found:
            return np.zeros((0, DRAW_WORDS), np.uint32)
        runs = np.broadcast_shapes(*(draw.shape[:-2] for draw in found))
        return np.concatenate([np.broadcast_to(draw, runs + draw.shape[-2:]) for draw in found], axis=-2)

    def _refuse_shared_draws(self) -> None:
        whole = np.dtype((np.void, 4 * DRAW_WORDS))
        each = np.ascontiguousarray(self.draws()).view(whole)[..., 0]
        for run in each.reshape(-1, each.shape[-1]) if each.size else ():
            if len(set(run.tolist())) < len(run):
                wanted = "new noise for every release: a key serves one run and its continuations"
                raise _validate.expected("transcript", wanted, self._sharing(run.tolist()))

    def _sharing(self, run: list[bytes]) -> str:
        """Names two releases of a run that have the same noise."""
        names = [
            f"{release.process.name!r} number {number}"
            for part in self.parts
            for release in part
            for number in _numbers(release)
        ]
        second = next(place for place, draw in enumerate(run) if draw in run[:place])
        return f"the same noise in {names[run.index(run[second])]} and {names[second]}"

    def claim(self) -> Claim:
        """Returns the claim for one user, added or removed, at every delta: the curve of :meth:`epsilon`.

        Raises:
          InputError: no releases, or one without noise; releases that :meth:`event` refuses.
        """
        event = self.event()
        squared = mu_squared(event)
        if squared is None:
            return Claim.accounted(LossAccountant().compose(event))
        if squared in (0, math.inf):
            raise _validate.expected("transcript", "releases, all of them with noise", f"mu {math.sqrt(squared):g}")
        return Claim.gaussian(math.sqrt(squared), neighbouring="add_remove")

    def _streams(self) -> Iterator[tuple[Process, int]]:
        """Yields every stream of releases that begins with number 0, with its length."""
        going: dict[str, tuple[Process, int]] = {}
        for part in self.parts:
            for release in part:
                name = release.process.name
                for number in _numbers(release):
                    process, length = going.get(name, (release.process, 0))
                    if number == 0:
                        if length:
                            yield process, length
                        process, length = release.process, 0
                    if number != length:
                        wanted = f"releases 0, 1, 2, ... of one process {name!r}, each once and in order"
                        raise _validate.expected("transcript", wanted, f"number {number} after {length} of them")
                    if process is not release.process:
                        wanted = f"releases of one process {name!r}, the same object in all runs"
                        raise _validate.expected("transcript", wanted, f"number {number} of another object")
                    going[name] = process, length + 1
        yield from going.values()


def without_values(transcript: Callable[..., Transcript], *arguments: Any) -> Transcript:
    """Returns ``transcript(*arguments)`` with all that the accounting is about, but with None for what was released.

    No device and no server is played for it: numbers and fingerprints depend on neither.
    """

    def counted(release: Release) -> Release:
        return jax.tree.unflatten(
            jax.tree.structure(release), [*[False] * len(jax.tree.leaves(release.value)), True, True]
        )

    def wanted(whole: Transcript) -> Transcript:
        return Transcript(tuple(tuple(map(counted, part)) for part in whole.parts))

    return programs.needed(transcript, wanted, *arguments)


def _numbers(release: Release) -> list[int]:
    """Returns the numbers of a release, [rounds], which are the same in every run."""
    numbers = np.asarray(release.number)
    runs = numbers.reshape(-1, numbers.shape[-1])
    if (runs != runs[:1]).any():
        raise _validate.expected("transcript", f"as many releases of {release.process.name!r} in every run", "others")
    return runs[0].tolist()
