"""Defines the options by which a party states the terms of a secure training, and what it knows of the servers."""

import dataclasses
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dpaudit.secure.protocol.agreement import Terms


@dataclasses.dataclass(frozen=True, kw_only=True)
class TermsOptions:
    """Options that both servers and every owner give alike."""

    owners: tuple[str, ...]
    """Names of all owners, as in their certificates."""
    clip_norm: float = 1.0
    """L2 norm to which each example's gradient is clipped."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise divided by the clip norm; not for mode plain."""
    mode: Literal["noisy", "plain"] = "noisy"
    """noisy adds noise; plain opens the sum without noise, which is not private."""
    noise: Literal["binomial", "table"] = "binomial"
    """Distribution of the noise. table is the paper's, for comparison: it is not private, and large in rings of more
    than 17 bits."""
    protocol: Literal["circuit", "transfers"] | None = None
    """How the servers make the noise: by a garbled circuit, as in the paper, or by oblivious transfers alone, which
    send a third of the bytes and compute less. By default transfers where the noise is binomial."""
    least_owners: int | None = None
    """Number of owners with which a step proceeds once --wait is over; by default all."""
    owner_examples: int | None = None
    """Largest number of examples of one owner in a step. If given, the servers check that each owner's integers have
    at most the norm of so many clipped examples, and leave out who sends longer ones."""
    coins: int = 127
    """Number of coins of the binomial noise, 2^k - 1."""
    ring_bits: int = 25
    """Bits of the ring: shares are modulo 2 to this power."""
    depth: Literal[1, 2, 4] = 1
    """Depth of the oblivious transfers: a larger one sends fewer bytes and computes more."""
    ahead: int = 0
    """Number of steps for which the servers prepare garbled blocks on disk in advance, while they wait for owners."""
    budget: tuple[float, float] | None = None
    """EPSILON DELTA of the whole training, for a record in every step; once it is spent, nothing more is opened."""

    def terms(self, dimension: int, examples: int) -> "Terms":
        """Works out the terms, for so many coordinates and examples of all owners together.

        Raises:
          InputError: an option is out of range.
        """
        from dpaudit.secure.protocol import agreement

        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(TermsOptions)}
        return agreement.terms(dimension=dimension, examples=examples, **given)

    def words(self, dimension: int, examples: int) -> list[str]:
        """Returns the options as a command line for ``dpaudit secure server`` with the same terms."""
        words = ["--dimension", str(dimension), "--examples", str(examples)]
        for field in dataclasses.fields(TermsOptions):
            value = getattr(self, field.name)
            if value is not None:
                values = value if isinstance(value, tuple) else (value,)
                words += [f"--{field.name.replace('_', '-')}", *(str(each) for each in values)]
        return words


class Servers:
    """Stands for servers that others run, of which nothing is known here."""

    addresses: tuple[str, str] = ("", "")

    def check(self) -> None:
        """Raises InputError where a server of this machine has ended."""

    def figures(self) -> dict[str, float]:
        """Returns what is known of them for the report."""
        return {}
