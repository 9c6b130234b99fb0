"""Settings of the engine's tests: the `campaign` marker and the hypothesis profiles.

The property tests are short and the same on every run. As a campaign, thousands of examples each:

    pytest tests/engine -m campaign --hypothesis-profile campaign
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

settings.register_profile(
    "engine",
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=_QUIET,
)
settings.register_profile("campaign", settings.get_profile("engine"), max_examples=5000)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "campaign: properties that can be run with thousands of examples each"
    )
