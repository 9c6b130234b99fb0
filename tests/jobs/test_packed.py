"""Messages that leave a stored list are archived with the bytes that they have in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from reducing_saver.rows.packed import dumper

PLAIN = JsonPlusSerializer()
CALL = {"name": "look", "args": {"at": [1, None, 2.5]}, "id": "call_0", "type": "tool_call"}
MESSAGES = [
    HumanMessage("hello", id="h"),
    AIMessage("", id="a", tool_calls=[CALL], response_metadata={"model": "fake", 1: 2}),
    ToolMessage([{"type": "text", "text": "fünf"}], tool_call_id="call_0", artifact=(1, 2)),
    {"role": "user", "content": "a dict"},
    "a text",
    None,
]


class Xor(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in ciphertext)


CIPHERED = EncryptedSerializer(Xor(), PLAIN)


@pytest.mark.parametrize("path", [[], ["channel_values", "messages"]], ids=["list", "state"])
@pytest.mark.parametrize("serde", [PLAIN, CIPHERED], ids=["plain", "encrypted"])
def test_the_bytes_are_those_that_the_serializer_writes(serde: Any, path: Sequence[str]) -> None:
    value: Any = MESSAGES
    for key in reversed(path):
        value = {key: value, "other": [1]}
    stored = serde.dumps_typed(value)
    loaded = serde.loads_typed(stored)
    for key in path:
        loaded = loaded[key]
    dump = dumper([(stored, path, loaded)], serde)
    assert [dump(one) for one in loaded] == [serde.dumps_typed(one) for one in MESSAGES]
    stranger = HumanMessage("from elsewhere")
    assert dump(stranger) == serde.dumps_typed(stranger)


def test_what_is_stored_in_the_open_is_archived_encrypted() -> None:
    stored = PLAIN.dumps_typed(MESSAGES)
    loaded = CIPHERED.loads_typed(stored)
    kind, data = dumper([(stored, [], loaded)], CIPHERED)(loaded[0])
    assert (kind, data) == CIPHERED.dumps_typed(MESSAGES[0])
    assert b"hello" not in data


def test_a_field_that_this_version_does_not_know_is_kept() -> None:
    written = HumanMessage("hello", id="h", of_a_newer_version="held")
    stored = PLAIN.dumps_typed([written])
    loaded = PLAIN.loads_typed(stored)
    kind, data = dumper([(stored, [], loaded)], PLAIN)(loaded[0])
    assert b"of_a_newer_version" in data
    assert PLAIN.loads_typed((kind, data)) == written
