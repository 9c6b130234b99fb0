"""A real browser for the tests: Chromium without a window, told what to do over two pipes.

`$REDUCING_TEST_BROWSER` names one, which then has to be there, as in CI; else the first Chromium,
Chrome or Edge of this machine is taken. None is installed with this project: where there is none,
`UnavailableError` says so. What is spoken is the DevTools protocol (`--remote-debugging-pipe`), so
no package is needed either.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "REDUCING_TEST_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# Becomes the browser, which reads the descriptor 3 and writes 4: first both are copied out of
# their way.
START = """
import fcntl, os, sys
copies = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for copy, wanted in zip(copies, (3, 4)):
    os.dup2(copy, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


class UnavailableError(Exception):
    """There is no browser here; the message says where it was looked for."""


def find() -> str:
    """Return the path of a browser."""
    if os.name != "posix":
        raise UnavailableError("the tests start a browser on POSIX systems only")
    if named := os.environ.get(VARIABLE):
        if not (found := shutil.which(named)):
            raise FileNotFoundError(f"${VARIABLE} is {named}, which is not there")
        return found
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise UnavailableError(f"no browser: ${VARIABLE} is not set, and no {', '.join(NAMES)}")
    return found


class Tab:
    """One page of a browser: what it shows, and what it complained about."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, os.fdopen(receive, "rb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        said = {"id": number, "method": method, "params": parameters}
        if self._session:
            said["sessionId"] = self._session
        os.write(self._send, json.dumps(said).encode() + b"\0")
        while (got := self._read()).get("id") != number:
            self.events.append(got)
        if "error" in got:
            raise RuntimeError(f"{method}: {got['error']}")
        return got["result"]

    def open(self, path: Path, *, width: int = 1000, dark: bool = False) -> None:
        """Load a file in a window of this width."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        got = self.call("Runtime.evaluate", **asked)
        if "exceptionDetails" in got:
            raise RuntimeError(got["exceptionDetails"])
        return got["result"].get("value")

    def picture(self, path: Path) -> None:
        """Save the whole page as a picture."""
        got = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(got["data"]))

    @property
    def complaints(self) -> list[str]:
        """Return what stands in the console: errors, warnings, and whatever a script said."""
        self.run("new Promise(done => setTimeout(done, 50))")
        names = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in names]

    @property
    def requests(self) -> list[str]:
        """Return what was fetched."""
        sent = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._receive.read1(65536)
            if not more:
                raise RuntimeError("the browser has gone")
            self._rest += more
        said, _, self._rest = self._rest.partition(b"\0")
        return json.loads(said)


@contextlib.contextmanager
def browser() -> Iterator[Tab]:
    """Start a browser with a profile of its own, and stop it."""
    path = find()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    start = [sys.executable, "-c", START, str(theirs_in), str(theirs_out), path, *QUIET]
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        running = subprocess.Popen(
            [*start, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out),
            env={**os.environ, "HOME": profile},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Tab(ours_out, ours_in)
        finally:
            os.close(ours_out)
            running.terminate()
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
