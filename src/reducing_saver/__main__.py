"""Start the command line: `reducing-saver`, or `python -m reducing_saver`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from io import TextIOWrapper


def main() -> int:
    """Run the command line and return its exit code; say what to install where that is missing."""
    for module in ("typer", "rich"):
        if find_spec(module) is None:
            extra = "demo" if "demo" in sys.argv[1:2] else "cli"
            command = f"pip install 'reducing-saver[{extra}]'"
            sys.stderr.write(f"reducing-saver: {module} is not installed; run: {command}\n")
            return 2
    from ._cli import run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what an old terminal cannot show is a ?
            stream.reconfigure(errors="replace")
    return run()


if __name__ == "__main__":
    sys.exit(main())
