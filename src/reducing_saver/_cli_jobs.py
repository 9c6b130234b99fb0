"""Define the commands of jobs: `stats`, `compact`, `worker`, `status`, `gc`, `erase`, `probe`."""

from __future__ import annotations

import typer

from ._cli_transcript import transcript


def add_commands(app: typer.Typer) -> None:
    """Add the commands that work on a database to the others."""
    app.command()(transcript)
