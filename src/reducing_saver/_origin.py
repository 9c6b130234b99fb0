"""Say what an error is and where it was raised, without its text, which may quote a message."""

from __future__ import annotations

from ._errors import ReducingSaverError


def origin_of(error: BaseException) -> str:
    """Return an error's type and the function that raised it, as `RuntimeError in save`.

    Of an error of ours that stands for another one, that one's.
    """
    if isinstance(error, ReducingSaverError) and error.origin:
        return error.origin
    name, trace = type(error).__name__, error.__traceback__
    if trace is None:
        return name
    while trace.tb_next is not None:
        trace = trace.tb_next
    function = trace.tb_frame.f_code.co_qualname.rpartition("<locals>.")[2]
    return f"{name} in {function}"
