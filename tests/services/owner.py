"""One server for a whole test run, however many worker processes it has.

The only process, or the xdist controller, has an `Owner`: it waits for a file to appear in a folder
and answers in another. `ask` is what a worker calls; nothing is started until a test asks.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class UnavailableError(Exception):
    """This way to a server is not open here; the message says why."""


class Owner:
    """Start a server when the first test asks for one, and stop it at the end of the run.

    What the server's context manager gives says how to reach it, in what JSON can say.
    """

    def __init__(
        self, name: str, server: Callable[[], contextlib.AbstractContextManager[Any]]
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"reducing-saver-{name}-"))
        self._server = server
        self._closing = threading.Event()
        self._cleanup = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def found(self) -> Any:
        """Give how to reach the server; None while nobody has asked, or where there is none."""
        answer = self.folder / "answer"
        return json.loads(answer.read_text()).get("found") if answer.exists() else None

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._cleanup.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serve(self) -> None:
        while not (self.folder / "wanted").exists():
            if self._closing.wait(0.05):
                return
        try:
            answer = {"found": self._cleanup.enter_context(self._server())}
        except UnavailableError as error:
            answer = {"unavailable": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        (self.folder / "draft").write_text(json.dumps(answer))
        (self.folder / "draft").rename(self.folder / "answer")


def ask(folder: Path) -> Any:
    """Return how to reach the run's server, started now if nobody has asked before."""
    (folder / "wanted").touch()
    answer = folder / "answer"
    while not answer.exists():
        time.sleep(0.05)
        if not folder.exists():
            raise RuntimeError("the process that owns the server has gone")
    answered = json.loads(answer.read_text())
    if "unavailable" in answered:
        raise UnavailableError(answered["unavailable"])
    if "error" in answered:
        raise RuntimeError(answered["error"])
    return answered["found"]
