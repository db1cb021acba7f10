"""Describes sources of noise that are drawn outside Python, or by a library's own methods."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpaudit import _validate
from dpaudit.audits.recording import noisy
from dpaudit.audits.recording.trace import Stage


class Adapter(NamedTuple):
    """A function of a library that adds noise to one of its arguments.

    Attributes:
      function: ``"module:function"`` or ``"module:Class.method"``.
      value: the argument that noise is added to.
      law: ``"laplace"``, ``"gaussian"`` or any other name; for other distributions the difference is reported, and its
        privacy loss is left to the audit.
      scale: of the noise: an argument's name, or a function of the dictionary of all arguments. None if it is not
        known.
      lattice: the spacing of noise on a grid, else 0.
    """

    function: str
    value: str
    law: str = "unknown"
    scale: str | Callable[[dict[str, Any]], float] | None = None
    lattice: float = 0.0

    def put(self, stage: Stage, put: Callable[..., None]) -> None:
        """Replaces the function, if its module is loaded.

        Raises:
          InputError: the module has no such function, or the function no such argument.
        """
        module, _, path = self.function.partition(":")
        *owners, name = path.split(".")
        try:
            holder = functools.reduce(getattr, owners, importlib.import_module(module))
            real = getattr(holder, name)
            signature = inspect.signature(real)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise _validate.expected(
                "adapters", f"functions that can be imported, {self.function} too", error
            ) from None
        for argument in (self.value, self.scale):
            if isinstance(argument, str) and argument not in signature.parameters:
                wanted = f"an argument of {self.function}: {', '.join(signature.parameters)}"
                raise _validate.expected("adapters", wanted, argument)

        @functools.wraps(real)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            trace = stage.trace
            if not (trace.is_open and trace.follows):
                return real(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            value = given[self.value]
            scale = (
                1.0 if self.scale is None else given[self.scale] if isinstance(self.scale, str) else self.scale(given)
            )
            trace.is_open = False  # its internal draws are not followed
            try:
                made = real(*args, **kwargs)
            finally:
                trace.is_open = True
            shape = np.shape(noisy.plain(value))
            raw = trace.draw(self.function, self.law, shape, lambda: np.asarray(made))
            ids = trace.block(max(1, raw.size), self.law, lattice=self.lattice / scale, draw=len(trace.draws) - 1)
            out = np.asarray(raw) if shape else np.asarray(raw)[()]
            offset = noisy.parts(noisy.plain(value))[0]
            tag = noisy.tag_of(value)
            parts = (offset, np.full(shape, float(scale)), ids.reshape(shape))
            return noisy.wrap(*trace.node("draw", out, *parts, inputs=() if tag is None else (tag.node,)))

        put(holder, name, wrapper)


def _diffprivlib_scale(given: dict[str, Any]) -> float:
    mechanism = given["self"]
    return float(mechanism.sensitivity) / float(mechanism.epsilon)


def diffprivlib() -> tuple[Adapter, ...]:
    """Returns adapters for the additive mechanisms of diffprivlib: Laplace, Geometric and both Gaussians."""
    made = {
        "laplace:Laplace": ("laplace", _diffprivlib_scale, 0.0),
        "gaussian:Gaussian": ("gaussian", lambda given: float(given["self"]._scale), 0.0),
        "gaussian:GaussianAnalytic": ("gaussian", lambda given: float(given["self"]._scale), 0.0),
        "geometric:Geometric": ("laplace", _diffprivlib_scale, 1.0),
    }
    return tuple(
        Adapter(f"diffprivlib.mechanisms.{place}.randomise", "value", law, scale, lattice)
        for place, (law, scale, lattice) in made.items()
    )


def opendp() -> tuple[Adapter, ...]:
    """Returns an adapter for OpenDP's measurements of pure differential privacy. It takes the Laplace scale from the
    epsilon that they state for a distance of 1, which is right for additive noise on numbers; others are refused.
    """

    def scale(given: dict[str, Any]) -> float:
        measurement = given["self"]
        measure = str(measurement.output_measure)
        if not measure.startswith("MaxDivergence"):
            raise _validate.expected("adapters.opendp", "a measurement that states an epsilon", measure)
        stated = measurement.map(1 if "i" in str(measurement.input_distance_type) else 1.0)
        return 1.0 / float(stated)

    return (Adapter("opendp.mod:Measurement.__call__", "arg", "laplace", scale),) if "opendp" in sys.modules else ()
