"""Fits a user's attack, or refuses it with a one-line error."""

from typing import Any

import jax
import jax.numpy as jnp

from dpaudit import _validate
from dpaudit._engine.game import of_trials
from dpaudit.auditing.attacks.base import Distinguisher, Score
from dpaudit.auditing.lint import probe
from dpaudit.mechanisms.claim import Mechanism


def fitted(argument: str, attack: Distinguisher, key: jax.Array, mechanism: Mechanism, x0: Any, x1: Any) -> Score:
    """Fits an attack and returns its score.

    Args:
      argument: the name of the attack's argument, for messages.
      attack: to be fitted.
      key, mechanism, x0, x1: as for :class:`Distinguisher`.

    Raises:
      InputError: one that raises, cannot be traced, does not return a number, or changes from one tracing to the next:
        both worlds are traced separately, so such an attack could tell apart two worlds that do not differ.
    """
    name, shapes = attack.name, shapes_of(mechanism, x0)
    try:
        score = attack.fit(key, mechanism, x0, x1)
        found = jax.eval_shape(score, shapes)
    except _validate.InputError:
        raise
    except probe.NOT_JITTABLE as error:
        got = f"{name}, which needs a number ({type(error).__name__})"
        raise _refused(argument, "scores that jax.jit can trace", got) from None
    except (Exception, SystemExit) as error:
        cause = _validate.one_line(f"{type(error).__name__}: {error}")
        raise _refused(argument, "a score of every release", f"{cause} (raised by {name})") from None
    if getattr(found, "shape", None) != () or (not jnp.issubdtype(found.dtype, jnp.number) and found.dtype != bool):
        shape = f"shape {list(found.shape)}" if hasattr(found, "shape") else type(found).__name__
        raise _refused(argument, "one number for each release", f"{shape} (from {name})")
    try:
        probe.refuse_changing(lambda: jax.make_jaxpr(score)(shapes), jax.make_jaxpr(score)(shapes), name)
    except _validate.InputError:
        wanted = "a score that depends on the release alone"
        frozen = "which changes each time it is traced (a counter, numpy.random, random, the time)"
        raise _refused(argument, wanted, f"{name}, {frozen}") from None
    return score


def _refused(argument: str, wanted: str, got: str) -> _validate.InputError:
    """Returns an error that gives the whole cause."""
    return _validate.InputError(f"{argument}: expected {wanted}, got {got}")


def shapes_of(mechanism: Mechanism, x0: Any) -> Any:
    """Returns the shapes and types of a release."""
    return jax.eval_shape(lambda key: jax.tree.map(jnp.asarray, mechanism.apply(key, x0)), of_trials())
