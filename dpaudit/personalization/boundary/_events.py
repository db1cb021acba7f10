"""Writes the events of releases as JSON, and reads them."""

from typing import Any

import attr
import dp_accounting
from dp_accounting import DpEvent

from dpaudit import _validate

_EVENTS = {
    kind.__name__: kind
    for kind in (
        dp_accounting.NoOpDpEvent,
        dp_accounting.NonPrivateDpEvent,
        dp_accounting.GaussianDpEvent,
        dp_accounting.PoissonSampledDpEvent,
        dp_accounting.SelfComposedDpEvent,
        dp_accounting.ComposedDpEvent,
    )
}


def to_json(event: Any) -> Any:
    """Returns an event, or a value in one, as JSON has it.

    Raises:
      InputError: an event of another kind than those of the boundary's processes.
    """
    match event:
        case DpEvent():
            name = type(event).__name__
            if name not in _EVENTS:
                raise _validate.expected("event", "one of " + ", ".join(_EVENTS), name)
            return {"kind": name} | {
                field.name: to_json(getattr(event, field.name)) for field in attr.fields(type(event))
            }
        case list() | tuple():
            return [to_json(part) for part in event]
    return event


def from_json(value: Any) -> Any:
    """Returns what :func:`to_json` was given, with tuples as lists."""
    match value:
        case dict():
            return _EVENTS[value["kind"]](**{field: from_json(v) for field, v in value.items() if field != "kind"})
        case list():
            return [from_json(part) for part in value]
    return value
