"""The container images of the tests, read from docker-compose.yml: they are named in one place."""

from __future__ import annotations

from pathlib import Path

import yaml

from .owner import UnavailableError

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


def named(service: str) -> str:
    """Give the image of a service in docker-compose.yml."""
    if not COMPOSE.exists():
        raise UnavailableError(f"{COMPOSE.name} is not beside the tests")
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return str(services[service]["image"])
