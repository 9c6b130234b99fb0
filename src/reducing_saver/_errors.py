"""The exceptions of this library.

    ReducingSaverError
    ├── ConfigurationError (ValueError)   a setting that cannot work; raised when it is built
    │   └── WindowError                   a window's field, with its value and what is allowed
    ├── JobError                          a job that another policy or another run stands against
    ├── SelectorError                     no part was selected; the content stays whole
    ├── CheckpointTooLargeError           a checkpoint is above `max_bytes`, whatever is cut
    ├── SummaryError                      no summary was made; a function may raise it
    └── ReductionError                    reducing failed; raised only with `strict=True`

What the inner saver raises is never wrapped. `NotASaverError` (a `TypeError`) is raised by
`ForwardingSaver` for what cannot be wrapped.
"""

from __future__ import annotations


class ReducingSaverError(Exception):
    """Be the base of every error of ours.

    `origin` names, without its text, the error that this one stands for.
    """

    origin: str | None = None


class ConfigurationError(ReducingSaverError, ValueError):
    """Name a setting, its value and what is allowed; `said` says it in other words."""

    def __init__(self, field: str, value: object, allowed: str, *, said: str = "") -> None:
        self.field, self.value, self.allowed, self.said = field, value, allowed, said
        super().__init__(said or f"{field}={value!r} is not allowed; allowed is {allowed}")


class WindowError(ConfigurationError):
    """Name a field of a window, its value and what is allowed."""


class JobError(ReducingSaverError):
    """Say why a job is not started: its name is another policy's, or another job runs."""


class ReductionError(ReducingSaverError):
    """Say that a checkpoint could not be reduced; raised only with `strict=True`."""
