"""Which checkpoints stay: `kept` is pure, so its rules are properties; bad values are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base.id import uuid6

from reducing_saver import ConfigurationError, Policy, Retain, Window
from reducing_saver._retain import Key, Row, floor, is_older, kept, moment, span
from reducing_saver.jobs.policy import fingerprint

NOW = datetime(2026, 1, 10, tzinfo=UTC)
CALL = "child:task"
SPACES = ("", "memory", CALL, f"{CALL}|memory")


def id_at(minutes: int) -> str:
    """Make an id that was made so many minutes before now; the same for the same minute."""
    return floor(NOW - timedelta(minutes=minutes))


@st.composite
def threads(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    for space in draw(st.lists(st.sampled_from(SPACES), unique=True, min_size=1)):
        ids: list[str] = []
        for minute in range(draw(st.integers(1, 12)), 0, -1):
            parent = draw(st.sampled_from([None, *ids, *ids[-1:]])) if ids else None
            roots = [row.key.id for row in rows if row.key.namespace == ""]
            root = draw(st.sampled_from([None, "gone", *roots])) if ":" in space else None
            needs = draw(st.lists(st.sampled_from(["gone", *ids]), max_size=1))
            source = draw(st.sampled_from(["input", "loop", "update"]))
            rows.append(Row(Key(space, id_at(minute * 7)), parent, source, root, tuple(needs)))
            ids.append(rows[-1].key.id)
    return rows


retains = st.builds(
    Retain,
    last=st.integers(1, 5),
    newer=st.one_of(st.none(), st.integers(0, 90).map(lambda m: timedelta(minutes=m))),
    tips=st.booleans(),
    turn_starts=st.integers(0, 3),
)


@given(threads(), retains)
def test_what_stays(rows: list[Row], retain: Retain) -> None:
    found = kept(rows, retain, now=NOW)
    by_key = {row.key: row for row in rows}
    assert found <= by_key.keys()
    for space in {row.key.namespace for row in rows}:
        own = sorted(
            (row for row in rows if row.key.namespace == space), key=lambda row: row.key.id
        )
        root = Key("", own[-1].root or "")
        if ":" in space and root in by_key and root not in found:
            assert not {row.key for row in own} & found, "a call stays without its root"
            continue
        assert {row.key for row in own[-retain.last :]} <= found
        if retain.tips:
            parents = {row.parent for row in own}
            assert {row.key for row in own if row.key.id not in parents} <= found
    for key in found:
        needs = {Key(key.namespace, id) for id in by_key[key].needs}
        assert needs & by_key.keys() <= found
    if isinstance(retain.newer, timedelta):
        young = {row.key for row in rows if row.key.id >= floor(NOW - retain.newer)}
        assert young <= found


@given(threads(), retains)
def test_it_is_settled_at_once(rows: list[Row], retain: Retain) -> None:
    """What stays stays again, as long as the parents of those that went are still known."""
    found = kept(rows, retain, now=NOW)
    left = [row for row in rows if row.key in found]
    assert kept(left, retain, now=NOW) == found
    assert kept(list(reversed(rows)), retain, now=NOW) == found


@given(threads(), retains)
def test_more_is_kept_by_more(rows: list[Row], retain: Retain) -> None:
    more = Retain(retain.last + 1, retain.newer, True, (rows[0].key.id,), retain.turn_starts + 1)
    assert kept(rows, retain, now=NOW) <= kept(rows, more, now=NOW)


def test_nothing_stays_of_nothing() -> None:
    assert kept([], Retain(), now=NOW) == frozenset()


def test_the_head_is_the_greatest_id_never_the_greatest_step() -> None:
    """C03: a fork repeats steps."""
    rows = [Row(Key("", id_at(m)), id_at(m + 1)) for m in (5, 4, 3, 2)]
    assert kept(rows, Retain(tips=False), now=NOW) == {Key("", id_at(2))}


def test_turn_starts_are_those_of_the_root() -> None:
    rows = [
        Row(Key("", id_at(9)), None, "input"),
        Row(Key("", id_at(8)), id_at(9), "loop"),
        Row(Key("", id_at(7)), id_at(8), "input"),
        Row(Key("", id_at(6)), id_at(7), "loop"),
        Row(Key("memory", id_at(5)), None, "input"),
        Row(Key("memory", id_at(4)), id_at(5), "loop"),
    ]
    found = kept(rows, Retain(turn_starts=1), now=NOW)
    assert found == {Key("", id_at(7)), Key("", id_at(6)), Key("memory", id_at(4))}


def test_a_named_checkpoint_of_a_call_keeps_its_root() -> None:
    rows = [
        Row(Key("", id_at(9)), None),
        Row(Key(CALL, id_at(8)), None, root=id_at(9)),
        Row(Key("", id_at(7)), id_at(9)),
    ]
    assert kept(rows, Retain(), now=NOW) == {Key("", id_at(7))}
    found = kept(rows, Retain(ids=[id_at(8)]), now=NOW)
    assert found == {Key("", id_at(9)), Key(CALL, id_at(8)), Key("", id_at(7))}


def test_an_id_that_is_no_uuid6_is_never_too_old() -> None:
    rows = [Row(Key("", name), None) for name in ("1", "2", "3")]
    found = kept(rows, Retain(newer="1h", tips=False), now=NOW)
    assert found == {row.key for row in rows}


def test_ids_tell_the_time() -> None:
    made = str(uuid6(clock_seq=-2))
    found = moment(made)
    assert found is not None
    assert abs(found - datetime.now(UTC)) < timedelta(minutes=1)
    assert is_older(made, floor(datetime.now(UTC) + timedelta(minutes=1)))
    assert not is_older(made, floor(datetime.now(UTC) - timedelta(minutes=1)))
    assert moment("other") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("last", 0),
        ("last", -1),
        ("last", 10**10),
        ("last", True),
        ("last", 1.5),
        ("last", "3"),
        ("last", None),
        ("turn_starts", -1),
        ("turn_starts", 10**12),
        ("tips", 1),
        ("newer", "24"),
        ("newer", "-1h"),
        ("newer", "99999999999999d"),
        ("newer", timedelta(seconds=-1)),
        ("newer", timedelta.max),
        ("newer", 3),
        ("ids", "abc"),
        ("ids", [1]),
        ("ids", [""]),
        ("ids", None),
    ],
)
def test_bad_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Retain(**{field: value})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90s", 90), ("30m", 1800), ("24h", 86400), ("1.5h", 5400), ("7d", 604800)],
)
def test_time_spans(text: str, seconds: float) -> None:
    assert span("newer", text).total_seconds() == seconds


@pytest.mark.parametrize(
    ("field", "value"), [("window", 5), ("retain", 3), ("paused", "all"), ("paused", None)]
)
def test_bad_policies_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        Policy(**{field: value})


def is_tool(message: Any) -> bool:
    return message.type == "tool"


def test_a_policy_is_plain_data_and_back() -> None:
    window = Window(("tokens", 9), [("messages", 40), ("turns", 9)], pinned=["todo"])
    policy = Policy(window, Retain(3, "2h", False, ["b", "a"], 1), "history")
    assert Policy.from_dict(policy.as_dict()) == policy
    assert fingerprint(policy.as_dict()) == fingerprint(
        Policy.from_dict(policy.as_dict()).as_dict()
    )
    assert fingerprint(policy.as_dict()) != fingerprint(Policy(window).as_dict())
    pinned = Policy(Window(("turns", 2), pinned=is_tool))
    with pytest.raises(ConfigurationError, match="is_tool"):
        Policy.from_dict(pinned.as_dict())
