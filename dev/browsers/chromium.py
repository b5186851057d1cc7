"""Chromium without a screen, driven through a pipe in the DevTools protocol: no driver, no WebSocket."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from dev.browsers.tab import ANSWER_S, Browser, Tab

ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--mute-audio", "--remote-debugging-pipe", "about:blank"),
)
KEYS = {
    **{"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36},
    **{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40},
}


class Chromium(Browser):
    """Chromium with a profile of its own; use it in a `with` statement.

    Args:
        program: its path.
        profile: an empty folder.
    """

    def __init__(self, program: str, profile: str) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # Chromium reads 3 and writes 4. Both ends may have these numbers here, so they go by way of higher ones.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        if {theirs_in, theirs_out} & set(range(10)):
            theirs_in, theirs_out = [_high(one) for one in (theirs_in, theirs_out)]
            shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *ARGUMENTS, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out = os.fdopen(ours_out, "wb", buffering=0)
        self._in = ours_in
        self._number = 0
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._listeners: dict[str, list[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._reader.join(10)  # its end of the pipe is closed as the browser ends
        os.close(self._in)

    def _read(self) -> None:
        text = b""
        while True:
            part = os.read(self._in, 1 << 16)
            if not part:
                break
            text += part
            *whole, text = text.split(b"\0")
            for one in whole:
                message = json.loads(one)
                if "id" in message:
                    self._waiting.pop(message["id"]).put(message)
                else:
                    self._listeners.get(message.get("sessionId", ""), []).append(message)
        for waiting in list(self._waiting.values()):
            waiting.put({"error": {"message": "the browser has ended"}})

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Return the result of a command; AssertionError where it fails."""
        answer: queue.Queue[dict[str, Any]] = queue.Queue()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = answer
            message = {"id": number, "method": method, "params": parameters}
            if session:
                message["sessionId"] = session
            self._out.write(json.dumps(message).encode() + b"\0")
        found = answer.get(timeout=ANSWER_S)
        assert "error" not in found, f"{method}: {found['error']}"
        result: dict[str, Any] = found["result"]
        return result

    @contextlib.contextmanager
    def page(
        self,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        phone: bool = False,
        downloads: str = "",
    ) -> Iterator[ChromiumTab]:
        """Open an empty tab; see the base class."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        behaviour = {"behavior": "allow", "downloadPath": downloads} if downloads else {"behavior": "deny"}
        self.call("Browser.setDownloadBehavior", browserContextId=context, **behaviour)
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._listeners[session] = []
        tab = ChromiumTab(self, session, self._listeners[session])
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height, phone)
        tab.colours(dark)
        try:
            yield tab
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


def _high(descriptor: int) -> int:
    made = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20)
    os.close(descriptor)
    return made


class ChromiumTab(Tab):
    """A page in Chromium."""

    def __init__(self, browser: Chromium, session: str, events: list[dict[str, Any]]) -> None:
        self._browser = browser
        self._session = session
        self._events = events

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """Change the size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def colours(self, dark: bool) -> None:
        """Set what the system prefers."""
        value = "dark" if dark else "light"
        features = [
            {"name": "prefers-color-scheme", "value": value},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def time_zone(self, name: str) -> None:
        """Set the zone of the system, such as Asia/Dubai."""
        self.call("Emulation.setTimezoneOverride", timezoneId=name)

    def open(self, url: str) -> None:
        """Go to an address."""
        assert "errorText" not in self.call("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page again."""
        self.call("Page.reload")

    def run(self, code: str) -> Any:
        """Return the value of an expression in the page; of a promise, its result."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in found, f"{code[:200]}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key of the keyboard."""
        typed = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = KEYS.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                modifiers=8 if shift else 0,
                **(typed if kind == "keyDown" else {}),
            )

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def mouse(self, x: float, y: float, to: tuple[float, float] | None = None) -> None:
        """Click at a point, or drag from it to another one."""
        self._move("mouseMoved", x, y)
        self._move("mousePressed", x, y, 1)
        if to is not None:
            self._move("mouseMoved", (x + to[0]) / 2, (y + to[1]) / 2, 1)
            x, y = to
            self._move("mouseMoved", x, y, 1)
        self._move("mouseReleased", x, y)

    def _move(self, kind: str, x: float, y: float, buttons: int = 0) -> None:
        is_click = kind != "mouseMoved"
        button = "left" if is_click or buttons else "none"
        self.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=int(is_click)
        )

    def picture(self, whole: bool = False) -> bytes:
        """Return what is seen, or all of the page, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def tree(self) -> list[dict[str, Any]]:
        """Return what screen readers get: the nodes of the accessibility tree that are not ignored."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node["ignored"]]

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console, and exceptions."""
        said = []
        for event in list(self._events):
            values = event["params"]
            if event["method"] == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
                said.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")
            elif event["method"] == "Runtime.exceptionThrown":
                details = values["exceptionDetails"]
                said.append(str(details.get("exception", {}).get("description", details["text"])))
            elif event["method"] == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
                said.append(str([one.get("value", one.get("description")) for one in values["args"]]))
        return said

    def requests(self) -> list[str]:
        """Return the requested addresses."""
        return [
            event["params"]["request"]["url"]
            for event in list(self._events)
            if event["method"] == "Network.requestWillBeSent"
        ]

    def dialogs(self) -> int:
        """Return the number of dialogs that scripts opened."""
        return len([event for event in list(self._events) if event["method"] == "Page.javascriptDialogOpening"])
