"""Write the built-in conversation: an office books its trips at a travel desk, in one thread."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import BaseTool
from langsmith import tracing_context

from .desk_tools import (
    TOOLS,
    book_flight,
    book_hotel,
    read_policy,
    search_flights,
    search_hotels,
    weather,
)
from .turns import Recording, cut

TURNS = 60
"""How long the conversation is by default."""

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
_SYSTEM = (
    "You are the travel desk of a company in Berlin. Find flights and hotels, book only what was "
    "asked for, keep to the travel policy, and name prices in euros. Ask before you book anything "
    "above the limits of the policy. Be brief."
)


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
    return replace(cut("travel-desk", desk.messages), asked=(), tools=TOOLS)
