"""Samples of messages: every required field is filled by its type, so that tests name only what matters to them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.messages import AnyBody, DesiredPlacement

_PLAIN = {inspect.BoolType: False, inspect.IntType: 1, inspect.FloatType: 1.0, inspect.StrType: "x"}
_T = TypeVar("_T", bound=msgspec.Struct)


def sample(kind: type[_T], **changes: Any) -> _T:
    """Return a message or part of one; lists and tables have one entry."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    values = {field.name: _value(field.type) for field in info.fields if field.required and field.name not in changes}
    return kind(**values, **changes)


def _value(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType():
            return sample(kind.cls)
        case inspect.ListType():
            return [_value(kind.item_type)]
        case inspect.TupleType():
            return tuple(_value(item) for item in kind.item_types)
        case inspect.DictType():
            return {_value(kind.key_type): _value(kind.value_type)}
    return _PLAIN[type(kind)]


def envelope(body: AnyBody | None = None, **changes: Any) -> Envelope:
    """Return a message of a controller at time 1, by default an empty placement, with these changes."""
    body = DesiredPlacement(decision="d", runs={}, moves=[]) if body is None else body
    factory = EnvelopeFactory("default", "c", lambda: 1.0)
    return msgspec.structs.replace(factory.envelope(body, ttl=9, application="app-1", epoch=1), **changes)
