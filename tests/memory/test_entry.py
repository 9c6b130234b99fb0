"""What is archived is compressed where that saves something, and read as it was written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from reducing_saver._entry import Entry

SERDE = JsonPlusSerializer()


@given(st.binary(max_size=64), st.integers(0, 400), st.sampled_from(["msgpack", "bytes", "a|b"]))
def test_it_holds_what_was_written(piece: bytes, times: int, kind: str) -> None:
    class Plain:
        def dumps_typed(self, value: object) -> tuple[str, bytes]:
            raise AssertionError

        def loads_typed(self, typed: tuple[str, bytes]) -> object:
            return typed

    data = piece * times
    entry = Entry.of("key.1", (kind, data))
    assert entry.load(Plain()) == (kind, data)
    assert len(entry.data) <= len(data)


def test_a_large_result_takes_a_part() -> None:
    message = ToolMessage("a line of a log, as there are many\n" * 200, tool_call_id="c")
    written = SERDE.dumps_typed(message)
    entry = Entry.of("key.1", written)
    assert len(entry.data) < 0.1 * len(written[1])
    assert entry.load(SERDE) == message


def test_a_short_message_stays_as_it_is() -> None:
    written = SERDE.dumps_typed(HumanMessage("yes"))
    assert len(written[1]) < 256
    assert Entry.of("key.1", written) == Entry("key.1", *written)


def test_what_is_encrypted_stays_as_it_is() -> None:
    pytest.importorskip("Crypto")
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 32)
    message = AIMessage("x" * 10_000)
    written = serde.dumps_typed(message)
    entry = Entry.of("key.1", written)
    assert (entry.kind, entry.data) == written
    assert entry.load(serde) == message


def test_threads_do_not_share_what_compresses() -> None:
    messages = [AIMessage(f"word {i} " * 500) for i in range(200)]

    def there_and_back(message: AIMessage) -> AIMessage:
        return Entry.of("key.1", SERDE.dumps_typed(message)).load(SERDE)

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(there_and_back, messages)] == messages
