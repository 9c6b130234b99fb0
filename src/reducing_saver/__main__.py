"""Start the command line: `reducing-saver`, or `python -m reducing_saver`."""

from __future__ import annotations

import sys

_NEEDED = {"typer": "cli", "rich": "cli"}


def main() -> int:
    """Run the command line and return its exit code; say what to install where that is missing."""
    try:
        from ._cli import run
    except ModuleNotFoundError as error:
        extra = _NEEDED.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return missing(error.name or "", extra)
    return run()


def missing(module: str, extra: str) -> int:
    """Name on standard error what to install, in one line; return the exit code."""
    command = f"pip install 'reducing-saver[{extra}]'"
    sys.stderr.write(f"reducing-saver: {module} is not installed; run: {command}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
