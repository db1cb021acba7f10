"""Gives noisy numbers the operators and the methods of NumPy's numbers, by functions that track the noise."""

from collections.abc import Callable
from typing import Any

import numpy as np


def _forward(ufunc: np.ufunc) -> Callable[..., Any]:
    return lambda self, other: _scalar(ufunc, self, other)


def _backward(ufunc: np.ufunc) -> Callable[..., Any]:
    return lambda self, other: _scalar(ufunc, other, self)


def _scalar(ufunc: np.ufunc, *inputs: Any) -> Any:
    if not all(isinstance(one, int | float | np.number | np.ndarray | np.bool_) for one in inputs):
        return NotImplemented
    return ufunc(*inputs)


class Number:
    """The operators and methods that noisy numbers share; a single number is its own sum, mean and transpose."""

    def __neg__(self) -> Any:
        own: Any = self
        return np.negative(own)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        own: Any = self
        return np.abs(own)

    def __bool__(self) -> bool:
        own: Any = self
        return bool(np.not_equal(own, 0))

    @property
    def T(self) -> Any:
        return self

    @property
    def real(self) -> Any:
        return self

    def clip(self, min: Any = None, max: Any = None, **_: Any) -> Any:
        made: Any = self
        made = made if min is None else np.maximum(made, min)
        return made if max is None else np.minimum(made, max)

    def reshape(self, *shape: Any, **_: Any) -> Any:
        own: Any = self
        return np.multiply(own, np.ones(1).reshape(*shape))

    def ravel(self, *_: Any) -> Any:
        return self.reshape(1)

    flatten = ravel


def _itself(name: str) -> Callable[..., Any]:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        return self

    method.__name__ = name
    return method


ITSELF = ("max", "min", "sum", "mean", "prod", "conj", "conjugate", "copy", "item", "squeeze", "tolist", "transpose")
for _name in ITSELF:
    setattr(Number, _name, _itself(_name))

_OPERATIONS = {
    **{name: getattr(np, name) for name in ("add", "multiply", "power")},
    "sub": np.subtract,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
}
_ORDER = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}
for _name, _ufunc in _OPERATIONS.items():
    _short = {"multiply": "mul", "power": "pow"}.get(_name, _name)
    setattr(Number, f"__{_short}__", _forward(_ufunc))
    setattr(Number, f"__r{_short}__", _backward(_ufunc))
for _name, _full in _ORDER.items():
    setattr(Number, f"__{_name}__", _forward(getattr(np, _full)))
