"""Refuses a BatchNorm in training mode, of flax.linen or flax.nnx, where a loss has to be one example's own."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import flax.linen as nn

from dpaudit import _validate

_inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def refused() -> Iterator[None]:
    """Runs or traces networks in a context in which a BatchNorm in training mode raises InputError."""
    token = _inside.set(True)
    layer, plain = _of_nnx()
    if layer is not None:
        layer.__call__ = _checked(plain)
    try:
        with nn.intercept_methods(_linen):
            yield
    finally:
        _inside.reset(token)
        if layer is not None:
            layer.__call__ = plain


def _of_nnx() -> tuple[Any, Any]:
    """Returns flax.nnx's layer and what it calls; nothing where flax.nnx is not imported."""
    nnx = sys.modules.get("flax.nnx")
    layer = None if nnx is None else nnx.BatchNorm
    return layer, None if layer is None else layer.__call__


def _checked(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a layer's call that is refused in training mode, though not in other threads."""

    @functools.wraps(plain)
    def call(layer: Any, x: Any, use_running_average: bool | None = None, **others: Any) -> Any:
        if _inside.get():
            _refuse(layer.use_running_average if use_running_average is None else use_running_average)
        return plain(layer, x, use_running_average, **others)

    return call


def _linen(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    module = context.module
    if isinstance(module, nn.BatchNorm) and context.method_name == "__call__" and not module.is_initializing():
        given = args[1] if len(args) > 1 else kwargs.get("use_running_average")
        _refuse(module.use_running_average if given is None else given)
    return method(*args, **kwargs)


def _refuse(use_running_average: Any) -> None:
    if use_running_average is not None and not use_running_average:
        raise _validate.InputError(
            "loss_fn: expected examples that do not depend on each other, got a BatchNorm in training mode, which "
            "normalises by the whole batch: no example has a gradient of its own; use GroupNorm or LayerNorm, or "
            "use_running_average=True"
        )
