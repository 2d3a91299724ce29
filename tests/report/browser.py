"""A headless chromium over its debugging pipe: enough of the DevTools protocol to use a page as a reader does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
)
# The protocol is read from descriptor 3 and written to 4, whatever numbers the pipes have here.
LAUNCH = (
    "import fcntl, os, sys; read, write = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3]);"
    "os.dup2(read, 3); os.dup2(write, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 200.0  # a chromium that starts on a busy machine takes minutes


def found() -> str | None:
    """The path of a chromium on this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One chromium with a profile of its own, gone when the block ends."""

    def __init__(self, executable: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="report-browser-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCH, str(to_read), str(to_write)),
                *(executable, *FLAGS, f"--user-data-dir={self._profile.name}"),
            ],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        os.set_blocking(self._from, False)
        self._buffer = b""
        self._next = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come meanwhile are kept in ``events``."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError(f"chromium said nothing for {PATIENCE} s (exit code {self._process.poll()})")
            try:
                self._buffer += os.read(self._from, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> Page:
        """A new tab with the file loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call(
            "Emulation.setEmulatedMedia", features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}]
        )
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.events.clear()
        page.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())
        return page


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON carries it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release one named key."""
        codes = {"Tab": 9, "Enter": 13}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": "\r"} if key == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def accessible(self) -> list[tuple[str, str]]:
        """(role, name) of every node that a screen reader is given."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

    def screenshot(self, *, whole: bool = False) -> str:
        """A PNG in base64: what is seen, or the whole page."""
        return str(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])
