"""What one run of a traced mechanism notes: values with labels, keys with the places that consume them."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# What a value is made of; where inputs differ, the largest. NOISE is a draw that no data has been added to yet.
CONSTANT, DATA, KEY, MIXED, NOISE = range(5)


def is_key(array: Any) -> bool:
    """Whether this is an array of typed keys."""
    return jnp.issubdtype(getattr(array, "dtype", np.dtype(float)), jax.dtypes.prng_key)


def key_words(leaf: Any) -> Any:
    """The words of a key; anything else as it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


class Value(NamedTuple):
    array: Any
    label: int


class Use(NamedTuple):
    """One consumption of one key: ``place`` numbers the consumptions of a run, ``row`` the keys of an array.

    ``again``: meant to repeat another one of the same line: on the way back through ``jax.checkpoint``, or in one
    of the loops of ``jax.random.binomial``.
    """

    key: bytes
    place: int
    row: int
    kind: str  # "draw" | "split"
    where: str
    again: bool


class Swap(NamedTuple):
    """Take another key at this place and row."""

    place: int
    row: int
    salt: int


class Tape:
    """What one run notes."""

    def __init__(self, swap: Swap | None = None):
        self.swap = swap
        self.uses: list[Use] = []
        self.coarse: list[tuple[str, str]] = []  # (dtype, where)
        self.places = 0
        self.again = False

    @contextlib.contextmanager
    def repeating(self, again: bool) -> Iterator[None]:
        """Within, uses are marked as ``again``."""
        outside, self.again = self.again, self.again or again
        yield
        self.again = outside

    def consume(self, words: np.ndarray, kind: str, where: str) -> np.ndarray:
        """Notes the keys ``words`` [n, words of a key] and returns those to use: another one where it is swapped."""
        place, self.places = self.places, self.places + 1
        self.uses += [Use(word.tobytes(), place, row, kind, where, self.again) for row, word in enumerate(words)]
        if self.swap is not None and self.swap.place == place:
            words = words.copy()
            words[self.swap.row] ^= np.asarray(0x9E3779B9 * self.swap.salt % 2**32, words.dtype)
        return words
