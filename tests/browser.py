"""A headless Chromium, driven over a pipe in its own protocol (CDP): no driver, no port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip
CONNECT = """
import os, sys
commands, answers, *command = sys.argv[1:]
os.dup2(int(commands), 3)
os.dup2(int(answers), 4)
os.execv(command[0], command)
"""  # the browser reads from 3 and writes to 4
TIMEOUT = 30.0  # seconds


class Browser:
    """One page. `requests` are the addresses that it asked for, `complaints` what its console and its policy said."""

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        assert CHROMIUM is not None
        commands, self._commands = _pipe()
        self._answers, answers = _pipe()

        self._process = subprocess.Popen(
            [sys.executable, "-c", CONNECT, str(commands), str(answers), CHROMIUM, *FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        pages = [target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT
        while (answer := self._next(deadline)).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def resize(self, width: int, height: int) -> None:
        """A phone's width is a phone."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to. A page that is loaded again while it is asked is asked again."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
                break
            except RuntimeError as error:
                if "navigated" not in str(error) or time.monotonic() > deadline:
                    raise
        if "exceptionDetails" in told:
            raise RuntimeError(told["exceptionDetails"])
        return told["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + TIMEOUT
        while not self.value(condition):
            assert time.monotonic() < deadline, f"never: {condition}"
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def point(self, selector: str, *, click: bool = False) -> None:
        """The mouse goes there."""
        x, y = self._middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector: str) -> None:
        """A finger does."""
        x, y = self._middle(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _middle(self, selector: str) -> tuple[float, float]:
        place = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{place}.scrollIntoView({{block: 'center'}})")
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it has scrolled
        rect = self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({place}.getBoundingClientRect())"
        )
        return rect[0], rect[1]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self._answers, 2**16)
            assert read, "the browser has ended"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                if told["request"]["url"].startswith("http"):  # it opens pages of its own too
                    self.requests.append(told["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(told["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))
            case _:
                pass


def _pipe() -> tuple[int, int]:
    """Both ends far above the numbers that the browser wants to have."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 100) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
