"""Write the built-in conversation: an office books its trips at a travel desk, in one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from itertools import chain, count, islice
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolCall
from langchain_core.tools import tool

from .desk_tools import (
    book_flight,
    book_hotel,
    read_policy,
    search_flights,
    search_hotels,
    weather,
)
from .turns import Recording, Turn

TURNS = 60
"""How long the conversation is by default."""

_PEOPLE = ("Amara Okafor", "Ben Lindqvist", "Elif Kaya", "Hiro Tanaka", "Ines Laurent")
_CITIES = ("Lisbon LIS", "Paris CDG", "Vienna VIE", "Oslo OSL", "Athens ATH", "Dublin DUB")
_DEAR = ("Paris", "Dublin", "Oslo")
_SYSTEM = SystemMessage(
    "You are the travel desk of a company in Berlin. Find flights and hotels, book only what was "
    "asked for, keep to the travel policy, and name prices in euros. Ask before you book anything "
    "above the limits of the policy. Be brief."
)
_TOOLS = tuple(
    tool(each)
    for each in (search_flights, book_flight, search_hotels, book_hotel, read_policy, weather)
)


class _Call(NamedTuple):
    tool: Callable[..., Any]
    args: dict[str, Any]

    def result(self) -> Any:
        return self.tool(**self.args)


def travel_desk(turns: int = TURNS) -> Recording:
    """Write a conversation of so many turns between an office and its travel desk."""
    ids = (f"call_{number:04}" for number in count(1))
    trips = chain.from_iterable(_trip(number, ids) for number in count())
    first, *more = islice(trips, turns)
    begun = first._replace(inputs=(_SYSTEM, *first.inputs))
    return Recording("travel-desk", (begun, *more), tools=_TOOLS)


def _trip(number: int, ids: Iterator[str]) -> Iterator[Turn]:
    """Write one trip, turn by turn; what is said follows from what the tools will give."""
    name = _PEOPLE[number % len(_PEOPLE)]
    city, code = _CITIES[number % len(_CITIES)].split()
    first, nights = name.split()[0], 2 + number % 3
    day = (date(2026, 3, 2) + timedelta(days=9 * number)).isoformat()

    def turn(asked: str, *calls: _Call, answer: str) -> Turn:
        made = [
            ToolCall(type="tool_call", name=each.tool.__name__, args=each.args, id=next(ids))
            for each in calls
        ]
        return Turn((HumanMessage(asked),), (AIMessage("", tool_calls=made), AIMessage(answer)))

    flights = _Call(search_flights, {"origin": "BER", "destination": code, "date": day})
    best = flights.result()["offers"][:3]
    yield turn(
        f"{name} has to be in {city} on {day}. What is there from Berlin, before noon?",
        flights,
        answer="\n".join(
            (f"Three that fit for {first}:", *map(_offer, best), "Which one shall I book?")
        ),
    )

    flight = best[number % 3]["flight"]
    booking = _Call(book_flight, {"flight": flight, "date": day, "traveller": name})
    hotels = _Call(search_hotels, {"city": city, "arrival": day, "nights": nights})
    reference, seat = (booking.result()[key] for key in ("reference", "seat"))
    near = sorted(hotels.result()["hotels"], key=lambda hotel: int(hotel["metres_to_office"]))[:2]
    yield turn(
        f"{flight}, please. And find a hotel near the office there, {nights} nights.",
        booking,
        hotels,
        answer=f"Booked: {flight} for {name}, reference {reference}, seat {seat}. "
        f"For the nights: {' or '.join(map(_hotel, near))}.",
    )

    price, limit = near[0]["price_a_night"]["amount"], 240 if city in _DEAR else 180
    within = "Yes" if price <= limit else "No, it needs the consent of finance"
    yield turn(
        f"Is {near[0]['name']} within the policy?",
        _Call(read_policy, {"topic": "hotels"}),
        answer=f"{within}: {price} EUR a night in {city}, where the limit is {limit} EUR.",
    )

    chosen = near[0 if price <= limit else 1]["name"]
    stay = {"hotel": chosen, "arrival": day, "nights": nights, "guest": name}
    room = _Call(book_hotel, stay)
    reservation = room.result()["reservation"]
    yield turn(
        f"Then take {chosen} for {first}.",
        room,
        answer=f"Done, reservation {reservation}, {nights} nights from {day}.",
    )

    sky = _Call(weather, {"city": city, "date": day})
    usual = sky.result()
    yield turn(
        "Thanks! What should be packed, and can I have it all in one paragraph?",
        sky,
        answer=f"{first} flies with {flight} on {day} (reference {reference}) and stays at "
        f"{chosen} for {nights} nights (reservation {reservation}). In {city} it is usually "
        f"{usual['low_c']} to {usual['high_c']} degrees"
        + (", with rain: an umbrella helps." if usual["rain"] else " and dry."),
    )


def _offer(offer: dict[str, Any]) -> str:
    times = f"{offer['from']['time'][11:]} to {offer['to']['time'][11:]}"
    stops = "one stop" if offer["stops"] else "non-stop"
    price = offer["price"]["amount"]
    return f"- {offer['flight']} ({offer['airline']}), {times}, {stops}, {price} EUR"


def _hotel(hotel: dict[str, Any]) -> str:
    price = hotel["price_a_night"]["amount"]
    return f"{hotel['name']} ({hotel['metres_to_office']} m, {price} EUR a night)"
