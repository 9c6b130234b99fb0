"""Give the travel desk its tools: made-up flights and hotels, the same in every run."""

from __future__ import annotations

import random
from typing import Any

_AIRLINES = {
    "NW": "Northwind",
    "BM": "Blue Meridian",
    "AE": "Aeralta",
    "SE": "Skyline Europe",
}
_HOTELS = ("Harbour House", "The Linden", "Hotel Meridiano", "Station Square", "Villa Aurora")
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


def search_flights(origin: str, destination: str, date: str) -> dict[str, Any]:
    """List the flights of a day with their prices."""
    dice = _dice("flights", origin, destination, date)
    offers = [_flight(dice, origin, destination, date, 6 + 2 * number) for number in range(7)]
    return {"offers": offers, "source": "fares", "complete": True}


def _flight(
    dice: random.Random, origin: str, destination: str, date: str, hour: int
) -> dict[str, Any]:
    code, minute = dice.choice(list(_AIRLINES)), dice.choice((5, 20, 35, 50))
    landing = min(hour + dice.randint(2, 5), 23)
    return {
        "flight": f"{code}{dice.randint(100, 999)}",
        "airline": _AIRLINES[code],
        "from": {"airport": origin, "time": f"{date}T{hour:02}:{minute:02}"},
        "to": {"airport": destination, "time": f"{date}T{landing:02}:{minute:02}"},
        "stops": dice.choice((0, 0, 1)),
        "aircraft": dice.choice(("A320neo", "A321", "B737-8", "E195")),
        "cabin": "economy",
        "seats_left": dice.randint(1, 9),
        "price": {"amount": dice.randint(79, 420), "currency": "EUR"},
        "change_fee": {"amount": dice.choice((0, 50, 80)), "currency": "EUR"},
        "checked_bags": dice.choice((0, 1)),
        "co2_kg": dice.randint(90, 260),
    }


def book_flight(flight: str, date: str, traveller: str) -> dict[str, Any]:
    """Book a seat on a flight."""
    dice = _dice("booking", flight, date, traveller)
    return {
        "status": "confirmed",
        "reference": "".join(dice.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=6)),
        "flight": flight,
        "date": date,
        "traveller": traveller,
        "seat": f"{dice.randint(4, 31)}{dice.choice('ACDF')}",
        "ticket": f"220-{dice.randint(10**9, 10**10 - 1)}",
        "rules": "Changes until two hours before departure. Refund as a voucher.",
    }


def search_hotels(city: str, arrival: str, nights: int) -> dict[str, Any]:
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
    return {"city": city, "arrival": arrival, "hotels": hotels}


def book_hotel(hotel: str, arrival: str, nights: int, guest: str) -> dict[str, Any]:
    """Book a hotel room."""
    return {
        "status": "confirmed",
        "reservation": f"H{_dice('room', hotel, arrival, guest).randint(10**7, 10**8 - 1)}",
        "hotel": hotel,
        "arrival": arrival,
        "nights": nights,
        "guest": guest,
        "pay": "company account",
    }


def read_policy(topic: str) -> str:
    """Read a chapter of the travel policy."""
    return f"Travel policy, chapter {topic}. {_POLICY[topic]}" + (
        "Exceptions are decided by the finance team; write to them with the dates, the price and "
        "the reason. Bookings outside the policy without an exception are paid by the traveller. "
        "This chapter is valid from January and replaces all earlier ones."
    )


def weather(city: str, date: str) -> dict[str, Any]:
    """Give the usual weather of a city on a date."""
    dice = _dice("weather", city, date)
    low = dice.randint(-2, 17)
    return {
        "city": city,
        "date": date,
        "low_c": low,
        "high_c": low + 8,
        "rain": dice.random() < 0.4,
    }
