"""Put another list into a stored value; what stays keeps its bytes, and what leaves takes them.

A value is not loaded and dumped again: another class path, a blocked type or an older LangChain
would change what nobody asked to change. The format is msgpack of `JsonPlusSerializer`
(langgraph-checkpoint 4.3), plain or encrypted; any other is loaded and dumped by its serializer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

Typed = tuple[str, bytes]


def put_list(
    stored: Typed,
    path: Sequence[str],
    old: Sequence[Any],
    new: Sequence[Any],
    serde: SerializerProtocol,
) -> Typed:
    """Return the stored value with `new` where `old` stands; `path` are keys of nested dicts."""
    kind, data, cipher = _opened(stored, serde)
    if kind != "msgpack":
        return serde.dumps_typed(_with(serde.loads_typed(stored), path, list(new)))
    raw = _unpack(data)
    held = _at(raw, path)
    places = {id(message): place for place, message in enumerate(old)}
    items = [held[places[id(m)]] if id(m) in places else _raw(m, serde) for m in new]
    return _closed(_pack(_with(raw, path, items)), cipher, serde)


def dumper(
    lists: Iterable[tuple[Typed, Sequence[str], Sequence[Any]]], serde: SerializerProtocol
) -> Callable[[Any], Typed]:
    """Return what dumps a value by a serializer; a message of a stored list has its bytes already.

    `lists` are stored values, the path to a list in each, and that list as it was loaded.
    """
    cipher = isinstance(serde, EncryptedSerializer)
    known: dict[int, tuple[Any, Any]] = {}
    for stored, path, loaded in lists:
        kind, data, _ = _opened(stored, serde)
        if kind == "msgpack":
            raw = _at(_unpack(data), path)
            known |= {id(m): (m, packed) for m, packed in zip(loaded, raw, strict=True)}

    def dumped(value: Any) -> Typed:
        _, packed = known.get(id(value), (value, None))
        if not isinstance(packed, ormsgpack.Ext):
            return serde.dumps_typed(value)
        return _closed(_pack(packed), cipher, serde)

    return dumped


def put_value(
    stored: Typed, path: Sequence[str], value: object, serde: SerializerProtocol
) -> Typed:
    """Return the stored value with another one at this path."""
    kind, data, cipher = _opened(stored, serde)
    if kind != "msgpack":
        return serde.dumps_typed(_with(serde.loads_typed(stored), path, value))
    return _closed(_pack(_with(_unpack(data), path, _raw(value, serde))), cipher, serde)


def _at(held: Any, path: Sequence[str]) -> Any:
    for key in path:
        held = held[key]
    return held


def _with(held: Any, path: Sequence[str], value: object) -> Any:
    if not path:
        return value
    return {**held, path[0]: _with(held.get(path[0]), path[1:], value)}


def _opened(stored: Typed, serde: SerializerProtocol) -> tuple[str, bytes, bool]:
    kind, data = stored
    if isinstance(serde, EncryptedSerializer) and "+" in kind:
        kind, name = kind.split("+", 1)
        return kind, serde.cipher.decrypt(name, data), True
    return kind, data, False


def _closed(data: bytes, cipher: bool, serde: SerializerProtocol) -> Typed:
    if cipher and isinstance(serde, EncryptedSerializer):
        name, sealed = serde.cipher.encrypt(data)
        return f"msgpack+{name}", sealed
    return "msgpack", data


def _raw(value: object, serde: SerializerProtocol) -> Any:
    """Return a value as it is within a packed one."""
    plain = serde.serde if isinstance(serde, EncryptedSerializer) else serde
    kind, data = plain.dumps_typed(value)
    if kind != "msgpack":
        raise TypeError(f"a value of type {type(value).__name__} is not packed as msgpack")
    return _unpack(data)


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)


def _pack(value: object) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
