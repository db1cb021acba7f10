"""Tracks which noise is in numbers and arrays, through sums, products with constants and reshaping."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpaudit.audits.recording import affine
from dpaudit.audits.recording.affine import Parts
from dpaudit.audits.recording.numbers import Number
from dpaudit.audits.recording.trace import NO_NOISE, Tag, Trace

COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
PREDICATES = {"isnan", "isfinite", "isinf", "signbit"}
STRUCTURAL = (
    *(np.concatenate, np.stack, np.vstack, np.hstack, np.column_stack, np.reshape, np.ravel, np.transpose, np.squeeze),
    *(np.expand_dims, np.broadcast_to, np.copy, np.atleast_1d, np.append, np.tile, np.repeat, np.flip, np.roll),
)


def tag_of(value: Any, written: Any = None) -> Tag | None:
    """Returns how a noisy value is composed, or None for any other value, also for an array that was written to by
    other means than assignment, or through another array.

    Args:
      value: of any type.
      written: an index at which an array was assigned to just now.
    """
    tag = getattr(value, "_tag", None) if isinstance(value, NoisyArray | NoisyFloat | NoisyInt) else None
    if tag is None or not tag.trace.is_open:
        return None
    if not isinstance(value, NoisyArray) or holds(plain(value), tag, written):
        return tag
    lost(tag)
    return None


def lost(tag: Tag) -> None:
    """Keeps where noise was made that was written to before it was added to anything."""
    if tag.pure:
        tag.trace.lost.append(tag.trace.nodes[tag.node].where)


def holds(value: np.ndarray, tag: Tag, written: Any = None) -> bool:
    """Tells whether an array still has the value that its noise was recorded for, but where it was ``written`` to."""
    held = np.asarray(tag.trace.nodes[tag.node].value).astype(value.dtype)
    if written is not None and held.shape == value.shape:
        held[written] = value[written]
    return held.shape == value.shape and bool(np.all(same(held, value)))


def same(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compares two arrays of one shape element by element, NaN equal to NaN."""
    equal = np.asarray(first == second)
    is_number = first.dtype.kind in "fcmM" and second.dtype.kind in "fcmM"
    return equal | (np.isnan(first) & np.isnan(second)) if is_number else equal


def plain(value: Any) -> Any:
    """Returns the value without its tag."""
    if isinstance(value, NoisyArray):
        return value.view(np.ndarray)
    if isinstance(value, NoisyFloat):
        return np.float64(float.__float__(value))
    return int.__int__(value) if isinstance(value, NoisyInt) else value


def wrap(value: Any, tag: Tag) -> Any:
    """Returns the value with its tag, as an instance of a subclass of its type."""
    if isinstance(value, np.ndarray):
        wrapped = value.view(NoisyArray)
    elif isinstance(value, bool | np.bool_):
        return value
    elif isinstance(value, int | np.integer):
        wrapped = NoisyInt(value)
    else:
        wrapped = NoisyFloat(value)
    wrapped._tag = tag
    return wrapped


def parts(value: Any) -> Parts:
    """Returns offset, coefficient and ids of any number or array."""
    tag = tag_of(value)
    if tag is not None:
        return tag.offset, tag.coefficient, tag.ids
    value = np.asarray(plain(value))
    offset = value.astype(float) if value.dtype.kind in "biuf" else np.full(value.shape, math.nan)
    return offset, np.zeros(value.shape), np.full(value.shape, NO_NOISE)


def apply(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Applies a NumPy function and keeps track of the noise in what it returns."""
    out = kwargs.pop("out", None)
    tags = [tag for tag in map(tag_of, inputs) if tag is not None]
    values = tuple(plain(one) for one in inputs)
    result = getattr(ufunc, method)(*values, **{name: plain(value) for name, value in kwargs.items()})
    if method == "at" or isinstance(result, tuple) or ufunc.__name__ in PREDICATES or not tags:
        return _into(out, result)
    trace, nodes, name = tags[0].trace, tuple(tag.node for tag in tags), ufunc.__name__
    if name in COMPARISONS and method == "__call__":
        made = affine.add(trace, parts(inputs[0]), parts(inputs[1]), -1.0)
        pure = len(tags) == 1 and tags[0].pure
        with np.errstate(all="ignore"):
            margin = np.subtract(*(np.asarray(value, float) for value in values))
        return _into(out, trace.node("compared", result, *made, inputs=nodes, pure=pure, margin=margin)[0])
    made = _linear(trace, name, method, inputs, kwargs, np.shape(result))
    if made is not None:
        alone = name not in ("add", "subtract") or len(tags) == len(inputs)
        pure = alone and all(tag.pure for tag in tags)
        return _into(out, wrap(*trace.node("affine", result, *made, inputs=nodes, pure=pure)))
    return _into(out, nonlinear(name, tags, result))


def nonlinear(name: str, tags: list[Tag], result: Any) -> Any:
    """Returns a function of pure noise as new noise, and a function of anything else unchanged."""
    trace, nodes, shape = tags[0].trace, tuple(tag.node for tag in tags), np.shape(result)
    if all(tag.pure for tag in tags):
        made = affine.derived(trace, name, tags, shape)
        return wrap(*trace.node("derived", result, *made, inputs=nodes, pure=True))
    trace.node("observed", result, 0.0, 0.0, NO_NOISE, inputs=nodes)
    return result


def _linear(
    trace: Trace, name: str, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, ...]
) -> Parts | None:
    """Returns how the result is composed, if the function is linear in the noise."""
    if kwargs.get("where", True) is not True:
        return None
    if method == "reduce" and name == "add":
        axis, keep = kwargs.get("axis", 0), kwargs.get("keepdims", False)
        return affine.total(trace, parts(inputs[0]), shape, lambda one: np.sum(one, axis=axis, keepdims=keep))
    if method != "__call__":
        return None
    if name in ("add", "subtract"):
        return affine.add(trace, parts(inputs[0]), parts(inputs[1]), 1.0 if name == "add" else -1.0)
    if name in ("negative", "positive", "conjugate"):
        sign = -1.0 if name == "negative" else 1.0
        offset, coefficient, ids = parts(inputs[0])
        return sign * offset, sign * coefficient, ids
    noisy = [tag_of(one) is not None for one in inputs]
    if name == "multiply" and sum(noisy) == 1:
        offset, coefficient, ids = parts(inputs[noisy.index(True)])
        factor = parts(inputs[noisy.index(False)])[0]
    elif name in ("divide", "true_divide") and noisy == [True, False]:
        offset, coefficient, ids = parts(inputs[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = 1 / parts(inputs[1])[0]
    else:
        return None
    with np.errstate(invalid="ignore"):
        scale = coefficient * factor
        return offset * factor, scale, np.where(scale == 0, NO_NOISE, ids)


def _into(out: Any, result: Any) -> Any:
    """Writes the result into the caller's ``out``, and returns it with its tag."""
    if out is None or out[0] is None:
        return result
    target = out[0]
    np.copyto(plain(target), plain(result), casting="unsafe")
    tag = tag_of(result)
    if isinstance(target, NoisyArray):
        target._tag = tag
        return target
    return target if tag is None else wrap(np.asarray(target), tag)


class NoisyArray(np.ndarray):
    """An array with noise in it."""

    _tag: Tag | None = None

    def __array_finalize__(self, made_of: Any) -> None:
        self._tag = None

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return apply(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in STRUCTURAL and tag_of(self) is not None:
            return structural(function, args, kwargs)
        return super().__array_function__(function, types, args, kwargs)

    def __getitem__(self, index: Any) -> Any:
        return structural(lambda one: np.asarray(one)[plain(index)], (self,), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        index, inner = plain(index), tag_of(value)
        plain(self)[index] = plain(value)
        tag = tag_of(self, index)
        if tag is not None:
            mine = tuple(np.array(one) for one in (tag.offset, tag.coefficient, tag.ids))
            for own, new in zip(mine, parts(value), strict=True):
                own[index] = new
            inputs = (tag.node,) if inner is None else (tag.node, inner.node)
            seen, self._tag = tag.trace.node("affine", plain(self).copy(), *mine, inputs=inputs)
            np.copyto(plain(self), seen)

    def __iter__(self) -> Any:
        return (self[place] for place in range(len(self)))

    def __float__(self) -> Any:
        return float(np.ndarray.__float__(plain(self)))

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        return structural(lambda one: np.asarray(one).reshape(*shape, **kwargs), (self,), {})

    def ravel(self, *order: Any) -> Any:
        return structural(lambda one: np.asarray(one).ravel(*order), (self,), {})

    def flatten(self, *order: Any) -> Any:
        return self.ravel(*order)

    def transpose(self, *axes: Any) -> Any:
        return structural(lambda one: np.asarray(one).transpose(*axes), (self,), {})

    @property
    def T(self) -> Any:
        return self.transpose()

    def squeeze(self, *axis: Any) -> Any:
        return structural(lambda one: np.asarray(one).squeeze(*axis), (self,), {})

    def copy(self, order: Any = "C") -> Any:
        return structural(lambda one: np.array(one), (self,), {})

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        tag = tag_of(self)
        value = plain(self).astype(dtype, *args, **kwargs)
        if tag is None or value.dtype.kind not in "biuf":
            return value
        if value.dtype.kind != "f":
            return nonlinear("trunc", [tag], value)
        return wrap(*tag.trace.node("affine", value, *parts(self), inputs=(tag.node,), pure=tag.pure))

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        return np.divide(np.rint(np.multiply(self, 10.0**decimals)), 10.0**decimals)

    def item(self, *index: Any) -> Any:
        return self[index] if index else self.reshape(-1)[0]

    def __reduce__(self) -> Any:
        return np.asarray(plain(self)).__reduce__()


def structural(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Applies a function that moves elements without changing them."""
    tags: list[Tag] = []

    def mapped(one: Any, part: int) -> Any:
        if isinstance(one, list | tuple):
            return type(one)(mapped(each, part) for each in one)
        tag = tag_of(one)
        if tag is not None:
            if part == 0:
                tags.append(tag)
            return (plain(one), *parts(one))[part]
        is_data = isinstance(one, np.ndarray | float) or (part and isinstance(one, np.number))
        return (plain(one), *parts(one))[part] if is_data else one

    value = function(*mapped(args, 0), **kwargs)
    if not tags or isinstance(value, list | tuple):
        return value
    made = [function(*mapped(args, part), **kwargs) for part in (1, 2, 3)]
    inputs = tuple(dict.fromkeys(tag.node for tag in tags))
    pure = len(tags) == 1 and tags[0].pure
    return wrap(*tags[0].trace.node("affine", value, *made, inputs=inputs, pure=pure))


class _Scalar(Number):
    """Methods that noisy numbers share."""

    _tag: Tag | None = None

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return apply(ufunc, method, inputs, kwargs)

    def __round__(self, digits: int | None = None) -> Any:
        own: Any = self
        scale = 10.0 ** (digits or 0)
        rounded = np.rint(own * scale if digits else own)
        return _whole(rounded) if digits is None else rounded / scale

    def round(self, decimals: int = 0, out: Any = None) -> Any:
        return self.__round__(decimals)

    def __floor__(self) -> Any:
        return _whole(np.floor(self))

    def __ceil__(self) -> Any:
        return _whole(np.ceil(self))

    def __trunc__(self) -> Any:
        return _whole(np.trunc(self))

    def __int__(self) -> int:
        return int(plain(np.trunc(self)))

    def __hash__(self) -> int:
        return hash(plain(self))

    def __repr__(self) -> str:
        return repr(plain(self))

    def __str__(self) -> str:
        return str(plain(self))

    def __reduce__(self) -> Any:
        return (float if isinstance(self, float) else int), (plain(self),)

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __copy__(self) -> Any:
        return self


class NoisyFloat(np.float64):
    """A number with noise in it. It has the methods of :class:`_Scalar` as its own, because NumPy takes the type of an
    array of such numbers from the first base."""

    _tag: Tag | None = None

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        whole = np.dtype(dtype).kind in "iu"
        return _whole(np.trunc(self)) if whole else self

    def __format__(self, spec: str) -> str:
        return format(float(plain(self)), spec)


for _name, _method in {**vars(Number), **vars(_Scalar)}.items():
    if _name not in {"__dict__", "__weakref__", *vars(NoisyFloat)}:
        setattr(NoisyFloat, _name, _method)


class NoisyInt(_Scalar, int):
    """A whole number with noise in it."""

    def __format__(self, spec: str) -> str:
        return format(plain(self), spec)

    def __index__(self) -> int:
        return int.__index__(self)

    def __float__(self) -> float:
        return float(plain(self))


def _whole(value: Any) -> Any:
    """Returns a noisy float that holds a whole number as a noisy int."""
    tag = tag_of(value)
    return int(plain(value)) if tag is None else wrap(int(plain(value)), tag)
