"""Scores host releases by attacks that JAX compiles, in float64, so that no digits are lost."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpaudit import _validate
from dpaudit._engine import fingerprint
from dpaudit.auditing.attacks.base import Distinguisher
from dpaudit.auditing.attacks.checked import fitted
from dpaudit.auditing.host import game as games
from dpaudit.auditing.host.encoder import Encoder
from dpaudit.mechanisms.claim import Mechanism


class Named:
    """Scores of named attacks: called with leaves [n, 2, *shape], it gives [n, 2, attacks] in float32."""

    def __init__(self, scores: Sequence[Any], order: list[int], structure: Any, block: int) -> None:
        self.count = len(scores)
        self._order, self._block = order, block

        def of_release(*leaves: jax.Array) -> jax.Array:
            release = jax.tree.unflatten(structure, leaves)
            return jnp.stack([jnp.asarray(score(release), jnp.float32) for score in scores])

        self._compiled = jax.jit(jax.vmap(jax.vmap(of_release)))
        self._of_release = of_release

    def program(self, encoder: Encoder) -> list[bytes]:
        """Returns the program that scores a release, as :func:`fingerprint.program` does."""
        shapes = [jax.ShapeDtypeStruct(*encoder.shapes[i]) for i in self._order]
        with jax.enable_x64(True):
            return fingerprint.program(jax.make_jaxpr(self._of_release)(*shapes))

    def __call__(self, leaves: list[np.ndarray]) -> np.ndarray:
        def read(part: list[np.ndarray]) -> np.ndarray:
            with jax.enable_x64(True):
                return np.asarray(self._compiled(*part))

        own = [leaves[i] for i in self._order]
        return np.concatenate([one() for one in games.in_blocks(read, own, self._block)])


def scores_of(
    attacks: Sequence[Distinguisher],
    key: jax.Array,
    mechanism: Mechanism,
    x0: Any,
    x1: Any,
    encoder: Encoder,
    block: int,
) -> Named:
    """Fits attacks to a mechanism on the host.

    Raises:
      InputError: an attack that raises, cannot be traced, or does not return numbers; releases that are not arrays.
    """
    if encoder.layout is None:
        names = ", ".join(attack.name for attack in attacks)
        raise _validate.expected("attacks", "none where releases are not arrays of one shape", names)
    scores = [
        fitted("attacks", attack, jax.random.fold_in(key, i), mechanism, x0, x1) for i, attack in enumerate(attacks)
    ]
    paths, structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(lambda: mechanism.apply(key, x0)))
    places = [leaf.path for leaf in encoder.layout]
    return Named(scores, [places.index(jax.tree_util.keystr(path)) for path, _ in paths], structure, block)
