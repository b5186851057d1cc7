"""Firefox without a screen, driven in WebDriver BiDi: no driver between."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dev.browsers.tab import ANSWER_S, Browser, Tab
from dev.browsers.websocket import WebSocket

KEYS = {
    **{"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "End": "\ue010", "Home": "\ue011"},
    **{"ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015"},
}
SHIFT = "\ue008"
PREFERENCES = {
    "ui.prefersReducedMotion": 1,
    "network.auth.confirmAuth.enabled": False,  # a login in the address
    "network.http.phishy-userpass-length": 255,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "app.update.disabledForTesting": True,
    "extensions.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "layout.css.prefers-color-scheme.content-override": 1,  # light, unless a tab has another one
}
EVENTS = ("log.entryAdded", "network.beforeRequestSent", "browsingContext.userPromptOpened")
# the browser's own names of browsing contexts are others than those of the protocol
COLOURS = (
    'ChromeUtils.importESModule("chrome://remote/content/shared/NavigableManager.sys.mjs")'
    '.NavigableManager.getBrowsingContextById("{context}").top.prefersColorSchemeOverride = "{value}"'
)


class Firefox(Browser):
    """Firefox with a profile of its own; use it in a `with` statement.

    Args:
        program: its path.
        profile: an empty folder.
    """

    def __init__(self, program: str, profile: str) -> None:
        settings = [f"user_pref({json.dumps(key)}, {json.dumps(value)});\n" for key, value in PREFERENCES.items()]
        Path(profile, "user.js").write_text("".join(settings))
        self._process = subprocess.Popen(
            [
                *(program, "--headless", "--no-remote", "--profile", profile),
                *("--remote-debugging-port", "0", "--remote-allow-system-access", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._number = 0
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._listeners: dict[str, list[dict[str, Any]]] = {}
        try:
            self._socket = WebSocket(self._port(Path(profile, "WebDriverBiDiServer.json")), "/session", ANSWER_S)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            self.call("session.new", capabilities={})
            self.call("session.subscribe", events=EVENTS)
            tree = self.call("browsingContext.getTree", maxDepth=0, **{"moz:scope": "chrome"})
        except BaseException:
            self._end()
            raise
        self._chrome = tree["contexts"][0]["context"]

    def _port(self, path: Path) -> int:
        end = time.monotonic() + ANSWER_S
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                return int(json.loads(path.read_text())["ws_port"])
            time.sleep(0.05)
        raise ConnectionError(f"{self._process.args!r}: no connection in {ANSWER_S} s")

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Firefox:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._reader.join(10)  # its connection is closed as the browser ends
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while (text := self._socket.receive()) is not None:
                message = json.loads(text)
                if message.get("id") is not None:
                    if waiting := self._waiting.pop(message["id"], None):
                        waiting.put(message)
                elif message.get("type") == "event":
                    values = message["params"]
                    context = values.get("context") or values.get("source", {}).get("context", "")
                    self._listeners.get(context, []).append(message)
        for waiting in list(self._waiting.values()):
            waiting.put({"error": "closed", "message": "the browser has ended"})

    def _send(self, method: str, answer: queue.Queue[dict[str, Any]] | None, parameters: dict[str, Any]) -> None:
        with self._lock:
            self._number += 1
            if answer is not None:
                self._waiting[self._number] = answer
            self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command; AssertionError where it fails."""
        answer: queue.Queue[dict[str, Any]] = queue.Queue()
        self._send(method, answer, parameters)
        found = answer.get(timeout=ANSWER_S)
        assert "error" not in found, f"{method}: {found['error']}: {found['message']}"
        result: dict[str, Any] = found["result"]
        return result

    def evaluate(self, context: str, code: str) -> Any:
        """Return the value of an expression; of a promise, its result."""
        found = self.call(
            "script.evaluate",
            expression=code,
            target={"context": context},
            awaitPromise=True,
            userActivation=True,
        )
        assert found["type"] == "success", f"{code[:200]}: {found['exceptionDetails']}"
        return _plain(found["result"])

    def in_chrome(self, code: str) -> Any:
        """Return the value of an expression in the browser itself."""
        return self.evaluate(self._chrome, code)

    @contextlib.contextmanager
    def page(
        self,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        phone: bool = False,
        downloads: str = "",
    ) -> Iterator[FirefoxTab]:
        """Open an empty tab; see the base class."""
        user = self.call("browser.createUserContext")["userContext"]
        behaviour = {"type": "allowed", "destinationFolder": downloads} if downloads else {"type": "denied"}
        self.call("browser.setDownloadBehavior", downloadBehavior=behaviour, userContexts=[user])
        context = self.call("browsingContext.create", type="tab", userContext=user)["context"]
        self._listeners[context] = []
        tab = FirefoxTab(self, context, self._listeners[context])
        tab.resize(width, height, phone)
        tab.colours(dark)
        try:
            yield tab
        finally:
            self.call("browser.removeUserContext", userContext=user)


def _plain(value: dict[str, Any]) -> Any:
    """Return a value of the protocol as JSON has it."""
    kind, inner = value["type"], value.get("value")
    if kind in ("array", "set", "nodelist", "htmlcollection"):
        return [_plain(one) for one in inner or ()]
    if kind in ("object", "map"):
        return {key if isinstance(key, str) else _plain(key): _plain(one) for key, one in inner or ()}
    if kind == "number" and isinstance(inner, str):
        return None if inner != "-0" else 0
    return inner if kind in ("string", "number", "boolean") else None


class FirefoxTab(Tab):
    """A page in Firefox."""

    def __init__(self, browser: Firefox, context: str, events: list[dict[str, Any]]) -> None:
        self._browser = browser
        self._context = context
        self._events = events

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """Change the size, in CSS pixels."""
        viewport = {"width": width, "height": height}
        self._browser.call(
            "browsingContext.setViewport", context=self._context, viewport=viewport, devicePixelRatio=1.0
        )

    def colours(self, dark: bool) -> None:
        """Set what the system prefers."""
        self._browser.in_chrome(COLOURS.format(context=self._context, value="dark" if dark else "light"))

    def time_zone(self, name: str) -> None:
        """Set the zone of the system, such as Asia/Dubai."""
        self._browser.call("emulation.setTimezoneOverride", timezone=name, contexts=[self._context])

    def open(self, url: str) -> None:
        """Go to an address."""
        self._browser.call("browsingContext.navigate", context=self._context, url=url, wait="interactive")

    def reload(self) -> None:
        """Load the page again."""
        self._browser.call("browsingContext.reload", context=self._context, wait="interactive")

    def run(self, code: str) -> Any:
        """Return the value of an expression in the page; of a promise, its result."""
        return self._browser.evaluate(self._context, code)

    def _act(self, kind: str, actions: list[dict[str, Any]], **more: Any) -> None:
        source = {"type": kind, "id": kind, "actions": actions, **more}
        self._browser.call("input.performActions", context=self._context, actions=[source])

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key of the keyboard."""
        keys = [SHIFT] * shift + [KEYS.get(key, key)]
        downs = [{"type": "keyDown", "value": one} for one in keys]
        self._act("key", downs + [{"type": "keyUp", "value": one} for one in reversed(keys)])

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self._act("key", [{"type": kind, "value": one} for one in text for kind in ("keyDown", "keyUp")])

    def mouse(self, x: float, y: float, to: tuple[float, float] | None = None) -> None:
        """Click at a point, or drag from it to another one."""
        actions: list[dict[str, Any]] = [_move(x, y), {"type": "pointerDown", "button": 0}]
        if to is not None:
            actions += [_move((x + to[0]) / 2, (y + to[1]) / 2), _move(*to)]
        self._act("pointer", [*actions, {"type": "pointerUp", "button": 0}], parameters={"pointerType": "mouse"})

    def picture(self, whole: bool = False) -> bytes:
        """Return what is seen, or all of the page, as PNG."""
        origin = "document" if whole else "viewport"
        found = self._browser.call("browsingContext.captureScreenshot", context=self._context, origin=origin)
        return base64.b64decode(found["data"])

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console, and exceptions."""
        entries = [event["params"] for event in list(self._events) if event["method"] == "log.entryAdded"]
        return [entry["text"] for entry in entries if entry["level"] in ("error", "warn")]

    def requests(self) -> list[str]:
        """Return the requested addresses."""
        return [
            event["params"]["request"]["url"]
            for event in list(self._events)
            if event["method"] == "network.beforeRequestSent"
        ]

    def dialogs(self) -> int:
        """Return the number of dialogs that scripts opened."""
        return len([event for event in list(self._events) if event["method"] == "browsingContext.userPromptOpened"])


def _move(x: float, y: float) -> dict[str, Any]:
    return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}
