"""Tell what a function takes, before it is called for the first time."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def takes(function: Callable[..., object], *given: object) -> bool:
    """Tell whether a function may be called with these arguments, by their number."""
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        return False
    except ValueError:
        return True  # a builtin without a signature
    return True
