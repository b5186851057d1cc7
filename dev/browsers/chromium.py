"""A headless Chromium, driven through a pipe in the DevTools protocol: no driver, no WebSocket."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.support.machine import cannot_run

COMMON = Path(__file__).with_name("common.sh")
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--mute-audio", "--remote-debugging-pipe", "about:blank"),
)
ANSWER_S = 60
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def install(package: str) -> None:
    """Have a package of Debian; else the test is skipped."""
    done = subprocess.run(["bash", "-c", '. "$0"; install_packages "$1"', str(COMMON), package], check=False)
    if done.returncode:
        cannot_run(f"this needs the package {package}")


class Browser:
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

    def __enter__(self) -> Browser:
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
        """The result of a command; AssertionError where it fails."""
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
        return found["result"]

    @contextlib.contextmanager
    def page(self, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False):
        """An empty tab of so many pixels, in a context of its own: nothing is kept from another one."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._listeners[session] = []
        tab = Tab(self, session, self._listeners[session])
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


class Tab:
    """A page in the browser."""

    def __init__(self, browser: Browser, session: str, events: list[dict[str, Any]]) -> None:
        self._browser = browser
        self._session = session
        self.events = events

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """Another size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def colours(self, dark: bool) -> None:
        """What the system prefers."""
        value = "dark" if dark else "light"
        features = [
            {"name": "prefers-color-scheme", "value": value},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        """Go to an address."""
        assert "errorText" not in self.call("Page.navigate", url=url)

    def run(self, code: str) -> Any:
        """The value of an expression in the page; of a promise, what comes of it."""
        found = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, f"{code[:200]}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def wait(self, code: str, seconds: float = 20) -> None:
        """Until an expression is true."""
        done = self.run(
            f"(async () => {{ const end = performance.now() + {1000 * seconds};"
            f" while (performance.now() < end) {{ if ({code}) return true;"
            " await new Promise(r => setTimeout(r, 40)); }"
            " return false; })()"
        )
        assert done, f"never true: {code}"

    def press(self, key: str, shift: bool = False) -> None:
        """A key of the keyboard."""
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
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self, whole: bool = False) -> bytes:
        """What is seen, or all of the page, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def complaints(self) -> list[str]:
        """What the console was told of errors and warnings, and exceptions."""
        said = []
        for event in list(self.events):
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
        """The addresses that were asked."""
        return [
            event["params"]["request"]["url"]
            for event in list(self.events)
            if event["method"] == "Network.requestWillBeSent"
        ]
