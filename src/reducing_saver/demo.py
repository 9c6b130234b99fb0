"""Run one conversation twice through a real LangGraph agent: bare, and with `ReducingSaver`.

The agent is a compiled `StateGraph` with a chat model, LangGraph's own `ToolNode` and a SQLite
file; only the model is scripted, so that nothing needs a key or the network. It plays a travel
desk of any length (`travel_desk`), or turn by turn what somebody recorded (`recording`).
"""

from __future__ import annotations

import datetime
import json
import random
import sqlite3
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, tool
from langsmith import tracing_context
from pydantic import BaseModel, PrivateAttr

from ._archive import Discard
from ._saver import ReducingSaver
from ._transcripts import Conversation, TranscriptError, langchain_messages
from .engine import Problem, Window, problems

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

AnyMessage = TypeVar("AnyMessage", bound=BaseMessage)

PROVIDERS = ("openai", "anthropic", "gemini")
TURNS = 60
"""How long the travel desk's conversation is by default."""

LOADS = 9
"""How often a thread is loaded for the median of its loading time."""

NO_RESULT = "No result was recorded for this call."


# What is played: a conversation, cut into runs of the graph.


class Turn(NamedTuple):
    """Hold what comes in, and what the model answers until something comes in again."""

    inputs: tuple[BaseMessage, ...]
    replies: tuple[AIMessage, ...] = ()


class Asked(NamedTuple):
    """Hold one recorded call and its result, None where none was recorded."""

    id: str
    name: str
    result: ToolMessage | None


@dataclass(frozen=True, slots=True)
class Recording:
    """Hold a conversation, turn by turn, with what answers its tool calls.

    `asked` are the recorded calls in order: ids may repeat. `tools` are real ones, empty where
    the recorded results are the answers. `notes` count what cannot be played as it was recorded.
    """

    id: str
    turns: tuple[Turn, ...]
    asked: tuple[Asked, ...] = ()
    tools: tuple[BaseTool, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()

    @property
    def humans(self) -> int:
        """Count the human messages."""
        return sum(isinstance(m, HumanMessage) for turn in self.turns for m in turn.inputs)


def recording(conversation: Conversation) -> Recording:
    """Cut a recorded conversation into turns; every recorded result goes back to its call.

    Raises `TranscriptError` that names the message that cannot be played.
    """
    try:
        messages = langchain_messages(conversation.messages)
    except TranscriptError as error:
        raise TranscriptError(f"conversation {conversation.id}: {error}") from None
    return _cut(conversation.id, messages)


def _cut(key: str, messages: Iterable[BaseMessage]) -> Recording:
    reader = _Reader()
    for message in messages:
        reader.read(message)
    return reader.finish(key)


class _Reader:
    """Read messages one by one; remember the turns, and which call each result answers."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.asked: list[list[Asked]] = []  # one list for each AI message with calls
        self.notes: Counter[str] = Counter()
        self._open: list[Asked] | None = None  # the calls that nothing stands behind yet
        self._ids: set[str] = set()

    def read(self, message: BaseMessage) -> None:
        message = self._distinct(message)
        if isinstance(message, AIMessage):
            self._reply(message)
        elif isinstance(message, ToolMessage):
            self._result(message)
        else:
            self._input(message)

    def finish(self, key: str) -> Recording:
        asked = tuple(call for calls in self.asked for call in calls)
        missing = sum(call.result is None for call in asked)
        self.notes["tool calls without a recorded result, answered with an error"] = missing
        notes = tuple((note, count) for note, count in self.notes.items() if count)
        return Recording(key, tuple(self.turns), asked, notes=notes)

    def _distinct(self, message: AnyMessage) -> AnyMessage:
        # `add_messages` replaces a message by a later one with its id; here each one counts.
        if message.id in self._ids:
            return message.model_copy(update={"id": None})
        if message.id:
            self._ids.add(message.id)
        return message

    def _input(self, message: BaseMessage) -> None:
        self._open = None
        if self.turns and not self.turns[-1].replies:
            self.turns[-1] = Turn((*self.turns[-1].inputs, message))
        else:
            self.turns.append(Turn((message,)))

    def _reply(self, message: AIMessage) -> None:
        self._open = None
        calls = [self._identified(call) for call in (*message.tool_calls, *self._repaired(message))]
        if calls:
            message = message.model_copy(update={"tool_calls": calls, "invalid_tool_calls": []})
            self._open = [Asked(call["id"] or "", call["name"], None) for call in calls]
            self.asked.append(self._open)
        inputs, replies = self.turns.pop() if self.turns else Turn(())
        self.turns.append(Turn(inputs, (*replies, message)))

    def _repaired(self, message: AIMessage) -> Iterator[ToolCall]:
        for call in message.invalid_tool_calls:
            self.notes["tool calls whose arguments are not JSON, played as text"] += 1
            yield ToolCall(
                type="tool_call",
                name=call["name"] or "tool",
                args={"arguments": call["args"]},
                id=call["id"],
            )

    def _identified(self, call: ToolCall) -> ToolCall:
        if call["id"]:
            return call
        self.notes["tool calls without an id, given one"] += 1
        number = self.notes["tool calls without an id, given one"]
        return {**call, "id": f"call_without_id_{number}"}

    def _result(self, message: ToolMessage) -> None:
        for calls in reversed(self.asked):
            for place, call in enumerate(calls):
                if call.result is None and _answers(message, call):
                    calls[place] = call._replace(result=message)
                    self.notes["late tool results, given at once"] += calls is not self._open
                    return
        self.notes["tool results that answer no open call, left out"] += 1


def _answers(result: ToolMessage, call: Asked) -> bool:
    if result.tool_call_id:
        return result.tool_call_id == call.id
    return result.name in (None, "", call.name)


# The agent: a real graph, whose model and tools give what is in the recording.


class ScriptedModel(BaseChatModel):
    """Answer with what was put into it, in that order."""

    _waiting: deque[AIMessage] = PrivateAttr(default_factory=deque)

    def script(self, replies: Iterable[AIMessage]) -> None:
        """Give the answers of the coming run."""
        self._waiting = deque(replies)

    @property
    def waiting(self) -> bool:
        """Tell whether an answer is left."""
        return bool(self._waiting)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        reply = self._waiting.popleft().model_copy()
        return ChatResult(generations=[ChatGeneration(message=reply)])


class _OnlyId(BaseModel):
    # Whatever the recorded arguments are called, they are not needed, and cannot clash.
    tool_call_id: Annotated[str, InjectedToolCallId]


def _recorded_tools(asked: Iterable[Asked]) -> list[BaseTool]:
    answers: dict[str, dict[str, deque[ToolMessage | None]]] = {}
    for call in asked:
        answers.setdefault(call.name, {}).setdefault(call.id, deque()).append(call.result)
    return [_recorded_tool(name, by_id) for name, by_id in answers.items()]


def _recorded_tool(name: str, answers: dict[str, deque[ToolMessage | None]]) -> BaseTool:
    def answer(tool_call_id: str) -> ToolMessage:
        result = answers[tool_call_id].popleft()
        if result is None:
            return ToolMessage(NO_RESULT, tool_call_id=tool_call_id, name=name, status="error")
        return result.model_copy(update={"tool_call_id": tool_call_id, "name": name})

    return StructuredTool.from_function(
        answer, name=name, description="Give the recorded result.", args_schema=_OnlyId
    )


def _agent(
    model: ScriptedModel, tools: Sequence[BaseTool], saver: BaseCheckpointSaver[Any]
) -> CompiledStateGraph[Any, Any, Any, Any]:
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    def agent(state: Any) -> dict[str, list[BaseMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    def route(state: Any) -> str:
        last = state["messages"][-1] if state["messages"] else None
        if isinstance(last, AIMessage) and last.tool_calls:
            return "tools"
        return "agent" if model.waiting else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode(tools))
    for node in (START, "agent", "tools"):
        builder.add_conditional_edges(node, route, ["agent", "tools", END])
    return builder.compile(checkpointer=saver)


def _play(
    recordings: Iterable[Recording], saver: BaseCheckpointSaver[Any], tick: Callable[[], None]
) -> None:
    with tracing_context(enabled=False):  # whatever the environment says: no network
        for played in recordings:
            model = ScriptedModel()
            graph = _agent(model, played.tools or _recorded_tools(played.asked), saver)
            for turn in played.turns:
                model.script(turn.replies)
                inputs = [message.model_copy() for message in turn.inputs]
                config = _config(played.id)
                config["recursion_limit"] = 2 * len(turn.replies) + 10
                graph.invoke({"messages": inputs}, config)
                tick()


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


# What is measured.


class Head(NamedTuple):
    """Hold the newest checkpoint of a thread, measured in its file."""

    messages: int
    bytes: int
    load_ms: float
    problems: tuple[Problem, ...]


class Thread(NamedTuple):
    """Hold one conversation's newest checkpoint, bare and wrapped."""

    id: str
    turns: int
    bare: Head
    wrapped: Head


class File(NamedTuple):
    """Hold one SQLite file, with the time of all runs that filled it."""

    path: Path
    bytes: int
    checkpoints: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Hold what the two runs left behind."""

    window: Window
    threads: tuple[Thread, ...]
    bare: File
    wrapped: File
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def valid(self) -> tuple[Thread, ...]:
        """Return the threads whose wrapped history every provider takes."""
        return tuple(thread for thread in self.threads if not thread.wrapped.problems)

    def refused(self, provider: str) -> tuple[tuple[Thread, Problem], ...]:
        """Return what a provider would refuse in the wrapped histories."""
        return tuple(
            (thread, problem)
            for thread in self.threads
            for problem in thread.wrapped.problems
            if provider in problem.providers
        )


def compare(
    recordings: Sequence[Recording],
    window: Window,
    folder: Path,
    *,
    tick: Callable[[str], None] = lambda side: None,
) -> Report:
    """Play the recordings into `bare.db` and `wrapped.db` of a folder, and measure both.

    `tick` is called after each turn with the name of the side.
    """
    notes: Counter[str] = Counter()
    for played in recordings:
        notes.update(dict(played.notes))
    bare = _fill(folder / "bare.db", recordings, None, lambda: tick("bare"))
    wrapped = _fill(folder / "wrapped.db", recordings, window, lambda: tick("wrapped"))
    threads = _threads(recordings, bare.path, wrapped.path, window)
    return Report(window, tuple(threads), bare, wrapped, dict(notes))


def _fill(
    path: Path, recordings: Sequence[Recording], window: Window | None, tick: Callable[[], None]
) -> File:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(path)) as sqlite:
        start = time.perf_counter()
        _play(recordings, _saver(sqlite, window), tick)
        seconds = time.perf_counter() - start
    with closing(sqlite3.connect(path)) as connection:  # closed above: nothing is left in its WAL
        (checkpoints,) = connection.execute("SELECT count(*) FROM checkpoints").fetchone()
    return File(path, path.stat().st_size, checkpoints, seconds)


def _saver(sqlite: BaseCheckpointSaver[Any], window: Window | None) -> BaseCheckpointSaver[Any]:
    return sqlite if window is None else ReducingSaver(sqlite, window, archive=Discard())


def _threads(
    recordings: Iterable[Recording], bare: Path, wrapped: Path, window: Window
) -> Iterator[Thread]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with (
        SqliteSaver.from_conn_string(str(bare)) as left,
        SqliteSaver.from_conn_string(str(wrapped)) as right,
    ):
        savers = (_saver(left, None), _saver(right, window))
        for played in recordings:
            sizes = [_head_bytes(sqlite.conn, played.id) for sqlite in (left, right)]
            lists = [_messages(saver, played.id) for saver in savers]
            heads = [
                Head(len(messages), size, load_ms, problems(messages))
                for messages, size, load_ms in zip(
                    lists, sizes, _load_ms(savers, played.id), strict=True
                )
            ]
            yield Thread(played.id, played.humans, *heads)


def _head_bytes(connection: sqlite3.Connection, thread: str) -> int:
    query = (
        "SELECT length(checkpoint) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = '' "
        "ORDER BY checkpoint_id DESC LIMIT 1"
    )
    (size,) = connection.execute(query, (thread,)).fetchone()
    return int(size)


def _messages(saver: BaseCheckpointSaver[Any], thread: str) -> list[object]:
    found = saver.get_tuple(_config(thread))
    return [] if found is None else list(found.checkpoint["channel_values"].get("messages", []))


def _load_ms(savers: Sequence[BaseCheckpointSaver[Any]], thread: str) -> list[float]:
    times: list[list[float]] = [[] for _ in savers]
    for _ in range(LOADS):  # in turns: a machine that is busy for a moment slows all of them
        for saver, taken in zip(savers, times, strict=True):
            start = time.perf_counter()
            saver.get_tuple(_config(thread))
            taken.append(time.perf_counter() - start)
    return [1000 * statistics.median(taken) for taken in times]


# The built-in conversation: an office that books its trips at a travel desk, in one long thread.

_PEOPLE = (
    "Amara Okafor",
    "Ben Lindqvist",
    "Carla Mendes",
    "Daniel Cho",
    "Elif Kaya",
    "Farid Haddad",
    "Grace Murphy",
    "Hiro Tanaka",
    "Ines Laurent",
    "Jonas Weber",
    "Keiko Mori",
    "Liam Brennan",
)
_CITIES = (
    ("Lisbon", "LIS"),
    ("Stockholm", "ARN"),
    ("Madrid", "MAD"),
    ("Vienna", "VIE"),
    ("Istanbul", "IST"),
    ("Dublin", "DUB"),
    ("Rome", "FCO"),
    ("Paris", "CDG"),
    ("Warsaw", "WAW"),
    ("Athens", "ATH"),
    ("Oslo", "OSL"),
    ("Budapest", "BUD"),
)
_DEAR = ("Paris", "Dublin", "Oslo")
_AIRLINES = ("Northwind", "Blue Meridian", "Aeralta", "Skyline Europe")
_HOTELS = ("Harbour House", "The Linden", "Hotel Meridiano", "Station Square", "Villa Aurora")
_SYSTEM = (
    "You are the travel desk of a company in Berlin. Find flights and hotels, book only what was "
    "asked for, keep to the travel policy, and name prices in euros. Ask before you book anything "
    "above the limits of the policy. Be brief."
)
_POLICY = {
    "hotels": "Hotels up to 180 EUR a night may be booked without asking. In Paris, Dublin and "
    "Oslo the limit is 240 EUR. Breakfast may be added where it costs at most 20 EUR. "
    "Rates must be free to cancel until 18:00 on the day before arrival, unless the trip is to a "
    "fair that was confirmed in writing. Points of loyalty programmes stay with the traveller. ",
    "flights": "Economy within Europe; premium economy on flights of more than six hours; business "
    "only with the consent of the head of the department. One checked bag is paid for where the "
    "trip is longer than two nights. Of offers that arrive within two hours of each other the "
    "cheapest is taken. Tickets must be changeable for at most 80 EUR. ",
}


def _dice(*key: str) -> random.Random:
    return random.Random("/".join(key))  # the same key gives the same world


@tool
def search_flights(origin: str, destination: str, date: str) -> str:
    """List the flights of a day with their prices."""
    dice = _dice("flights", origin, destination, date)
    offers = []
    for number in range(7):
        hour, minute = 6 + 2 * number, dice.choice((5, 20, 35, 50))
        offers.append(
            {
                "flight": f"{dice.choice(('NW', 'BM', 'AE', 'SE'))}{dice.randint(100, 999)}",
                "airline": dice.choice(_AIRLINES),
                "from": {"airport": origin, "time": f"{date}T{hour:02}:{minute:02}"},
                "to": {
                    "airport": destination,
                    "time": f"{date}T{min(hour + dice.randint(2, 5), 23):02}:{minute:02}",
                },
                "stops": dice.choice((0, 0, 1)),
                "aircraft": dice.choice(("A320neo", "A321", "B737-8", "E195")),
                "cabin": "economy",
                "seats_left": dice.randint(1, 9),
                "price": {"amount": dice.randint(79, 420), "currency": "EUR"},
                "change_fee": {"amount": dice.choice((0, 50, 80)), "currency": "EUR"},
                "checked_bags": dice.choice((0, 1)),
                "co2_kg": dice.randint(90, 260),
            }
        )
    return json.dumps({"offers": offers, "source": "fares", "complete": True})


@tool
def book_flight(flight: str, date: str, traveller: str) -> str:
    """Book a seat on a flight."""
    dice = _dice("booking", flight, date, traveller)
    return json.dumps(
        {
            "status": "confirmed",
            "reference": "".join(dice.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=6)),
            "flight": flight,
            "date": date,
            "traveller": traveller,
            "seat": f"{dice.randint(4, 31)}{dice.choice('ACDF')}",
            "ticket": f"220-{dice.randint(10**9, 10**10 - 1)}",
            "rules": "Changes until two hours before departure. Refund as a voucher.",
        }
    )


@tool
def search_hotels(city: str, arrival: str, nights: int) -> str:
    """List hotels near the office of a city."""
    dice = _dice("hotels", city, arrival)
    hotels = [
        {
            "name": f"{name} {city}",
            "stars": dice.choice((3, 4, 4)),
            "metres_to_office": dice.randint(150, 2400),
            "price_a_night": {"amount": dice.randint(95, 245), "currency": "EUR"},
            "nights": nights,
            "breakfast": {"amount": dice.choice((0, 14, 19, 24)), "currency": "EUR"},
            "rating": {"score": dice.randint(71, 96) / 10, "reviews": dice.randint(90, 4200)},
            "cancellation": "free until 18:00 on the day before arrival",
            "amenities": ["wifi", "desk", "24 h reception", dice.choice(("gym", "laundry"))],
        }
        for name in _HOTELS
    ]
    return json.dumps({"city": city, "arrival": arrival, "hotels": hotels})


@tool
def book_hotel(hotel: str, arrival: str, nights: int, guest: str) -> str:
    """Book a hotel room."""
    number = _dice("room", hotel, arrival, guest).randint(10**7, 10**8 - 1)
    return json.dumps(
        {
            "status": "confirmed",
            "reservation": f"H{number}",
            "hotel": hotel,
            "arrival": arrival,
            "nights": nights,
            "guest": guest,
            "pay": "company account",
        }
    )


@tool
def read_policy(topic: str) -> str:
    """Read a chapter of the travel policy."""
    return f"Travel policy, chapter {topic}. {_POLICY[topic]}" + (
        "Exceptions are decided by the finance team; write to them with the dates, the price and "
        "the reason. Bookings outside the policy without an exception are paid by the traveller. "
        "This chapter is valid from January and replaces all earlier ones."
    )


@tool
def weather(city: str, date: str) -> str:
    """Give the usual weather of a city on a date."""
    dice = _dice("weather", city, date)
    low = dice.randint(-2, 17)
    return json.dumps(
        {"city": city, "date": date, "low_c": low, "high_c": low + 8, "rain": dice.random() < 0.4}
    )


_TOOLS = (search_flights, book_flight, search_hotels, book_hotel, read_policy, weather)


class _Desk:
    """Write the conversation message by message; tools are really called for their results."""

    def __init__(self) -> None:
        self.messages: list[BaseMessage] = [SystemMessage(_SYSTEM)]
        self._calls = 0

    def human(self, text: str) -> None:
        self.messages.append(HumanMessage(text))

    def says(self, text: str) -> None:
        self.messages.append(AIMessage(text))

    def calls(self, *asked: tuple[BaseTool, dict[str, Any]]) -> list[Any]:
        calls: list[ToolCall] = []
        results: list[ToolMessage] = []
        for called, args in asked:
            self._calls += 1
            key = f"call_{self._calls:04}"
            calls.append(ToolCall(name=called.name, args=args, id=key, type="tool_call"))
            results.append(ToolMessage(called.invoke(args), tool_call_id=key, name=called.name))
        self.messages += [AIMessage("", tool_calls=calls), *results]
        return [_read(str(result.content)) for result in results]


def _read(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


def _trip(desk: _Desk, number: int) -> Iterator[None]:
    """Write one trip, and pause after each turn."""
    name = _PEOPLE[number % len(_PEOPLE)]
    city, code = _CITIES[(number * 5) % len(_CITIES)]
    first, nights = name.split()[0], 2 + number % 3
    date = (datetime.date(2026, 3, 2) + datetime.timedelta(days=9 * number)).isoformat()

    desk.human(f"{name} has to be in {city} on {date}. What is there from Berlin, before noon?")
    (found,) = desk.calls(
        (search_flights, {"origin": "BER", "destination": code, "date": date}),
    )
    best = found["offers"][:3]
    lines = [
        f"- {o['flight']} ({o['airline']}), {o['from']['time'][11:]} to {o['to']['time'][11:]}, "
        f"{'non-stop' if not o['stops'] else 'one stop'}, {o['price']['amount']} EUR"
        for o in best
    ]
    desk.says(f"Three that fit for {first}:\n" + "\n".join(lines) + "\nWhich one shall I book?")
    yield

    flight = best[number % 3]["flight"]
    desk.human(f"{flight}, please. And find a hotel near the office there, {nights} nights.")
    booked, hotels = desk.calls(
        (book_flight, {"flight": flight, "date": date, "traveller": name}),
        (search_hotels, {"city": city, "arrival": date, "nights": nights}),
    )
    near = sorted(hotels["hotels"], key=lambda h: int(h["metres_to_office"]))[:2]
    options = " or ".join(
        f"{h['name']} ({h['metres_to_office']} m, {h['price_a_night']['amount']} EUR a night)"
        for h in near
    )
    desk.says(
        f"Booked: {flight} for {name}, reference {booked['reference']}, seat {booked['seat']}. "
        f"For the nights: {options}."
    )
    yield

    desk.human(f"Is {near[0]['name']} within the policy?")
    desk.calls((read_policy, {"topic": "hotels"}))
    price, limit = near[0]["price_a_night"]["amount"], 240 if city in _DEAR else 180
    within = "Yes" if price <= limit else "No, it needs the consent of finance"
    desk.says(f"{within}: {price} EUR a night in {city}, where the limit is {limit} EUR.")
    yield

    chosen = near[0] if price <= limit else near[1]
    desk.human(f"Then take {chosen['name']} for {first}.")
    (room,) = desk.calls(
        (
            book_hotel,
            {"hotel": chosen["name"], "arrival": date, "nights": nights, "guest": name},
        ),
    )
    desk.says(f"Done, reservation {room['reservation']}, {nights} nights from {date}.")
    yield

    desk.human("Thanks! What should be packed, and can I have it all in one paragraph?")
    (sky,) = desk.calls((weather, {"city": city, "date": date}))
    desk.says(
        f"{first} flies with {flight} on {date} (reference {booked['reference']}) and stays at "
        f"{chosen['name']} for {nights} nights (reservation {room['reservation']}). In {city} it "
        f"is usually {sky['low_c']} to {sky['high_c']} degrees"
        + (", with rain: an umbrella helps." if sky["rain"] else " and dry.")
    )
    yield


def travel_desk(turns: int = TURNS) -> Recording:
    """Write a conversation of so many turns between an office and its travel desk."""
    desk = _Desk()
    with tracing_context(enabled=False):  # the tools run here too
        trips = chain.from_iterable(_trip(desk, number) for number in count())
        for _ in islice(trips, turns):
            pass
    cut = _cut("travel-desk", desk.messages)
    return Recording(cut.id, cut.turns, tools=_TOOLS)
