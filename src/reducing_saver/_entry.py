"""Hold a message as it is archived: as the saver's serializer wrote it, compressed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from zstandard import ZstdCompressor, ZstdDecompressor

_COMPRESSED = "|zstd"
# At the fastest level a tool result of 5 KB takes 20 us and half of its bytes; a higher one takes
# longer and a hundredth less.
_LEVEL = 1
_LEAST = 256


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold an archived message: its key, how its bytes are to be read, and the bytes.

    `text` is what the message says, only where a plain-text index was asked for.
    """

    key: str
    kind: str
    data: bytes
    text: str | None = None

    @classmethod
    def of(cls, key: str, typed: tuple[str, bytes], text: str | None = None) -> Entry:
        """Return the entry of what a serializer wrote, compressed where that saves a tenth."""
        kind, data = typed
        if len(data) >= _LEAST:
            packed = _zstd.compressor.compress(data)
            # What is encrypted does not get smaller.
            if len(packed) <= 0.9 * len(data):
                return cls(key, kind + _COMPRESSED, packed, text)
        return cls(key, kind, data, text)

    def load(self, serde: SerializerProtocol) -> Any:
        """Return the message."""
        kind, data = self.kind, self.data
        if kind.endswith(_COMPRESSED):
            kind, data = kind.removesuffix(_COMPRESSED), _zstd.decompressor.decompress(data)
        return serde.loads_typed((kind, data))

    @property
    def who(self) -> str:
        """Return the identity of the message, which its edits share."""
        return self.key.partition(".")[0]


class _Zstd(threading.local):
    """Hold what compresses, which no two threads may use at once and which takes long to make."""

    def __init__(self) -> None:
        self.compressor = ZstdCompressor(level=_LEVEL)
        self.decompressor = ZstdDecompressor()


_zstd = _Zstd()
