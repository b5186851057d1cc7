"""A page in a browser: what Chromium and Firefox have in common."""

from __future__ import annotations

import abc
import json
import time
from contextlib import AbstractContextManager
from typing import Any

ANSWER_S = 60


class Browser(abc.ABC):
    """A browser with a profile of its own; use it in a `with` statement."""

    @abc.abstractmethod
    def page(
        self,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        phone: bool = False,
        downloads: str = "",
    ) -> AbstractContextManager[Tab]:
        """Open an empty tab of a size in CSS pixels, in a context of its own: nothing is kept from another one.

        Args:
            width: of what is seen.
            height: of what is seen.
            dark: the system prefers dark colours.
            phone: the page is seen on a phone (Chromium).
            downloads: the folder of downloaded files; without one they are denied.
        """


class Tab(abc.ABC):
    """A page in a browser.

    Attributes:
        clicks: number of clicks so far.
    """

    clicks = 0

    @abc.abstractmethod
    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """Change the size, in CSS pixels."""

    @abc.abstractmethod
    def colours(self, dark: bool) -> None:
        """Set what the system prefers."""

    @abc.abstractmethod
    def time_zone(self, name: str) -> None:
        """Set the zone of the system, such as Asia/Dubai."""

    @abc.abstractmethod
    def open(self, url: str) -> None:
        """Go to an address."""

    @abc.abstractmethod
    def reload(self) -> None:
        """Load the page again."""

    def sign_in(self, url: str, user: str, password: str) -> None:
        """Log in by the form of a page, and leave the page."""
        self.open(f"{url}login")
        self.wait("document.readyState === 'complete' && document.forms.length === 1")
        fields = (
            f"(f.elements.namedItem('name').value = {user!r}, f.elements.namedItem('password').value = {password!r}"
        )
        self.run(f"(f => ({fields}, setTimeout(() => f.requestSubmit()), true)))(document.forms[0])")
        self.wait("location.pathname === '/' && document.readyState === 'complete'")
        self.open("about:blank")

    @abc.abstractmethod
    def run(self, code: str) -> Any:
        """Return the value of an expression in the page; of a promise, its result."""

    @abc.abstractmethod
    def press(self, key: str, shift: bool = False) -> None:
        """Press a key of the keyboard."""

    @abc.abstractmethod
    def type(self, text: str) -> None:
        """Type a text into what has the focus."""

    @abc.abstractmethod
    def mouse(self, x: float, y: float, to: tuple[float, float] | None = None) -> None:
        """Click at a point, or drag from it to another one."""

    @abc.abstractmethod
    def picture(self, whole: bool = False) -> bytes:
        """Return what is seen, or all of the page, as PNG."""

    @abc.abstractmethod
    def complaints(self) -> list[str]:
        """Return the errors and warnings of the console, and exceptions."""

    @abc.abstractmethod
    def requests(self) -> list[str]:
        """Return the requested addresses."""

    @abc.abstractmethod
    def dialogs(self) -> int:
        """Return the number of dialogs that scripts opened."""

    def wait(self, code: str, seconds: float = 20) -> None:
        """Wait until an expression is true; AssertionError at the deadline. The page may be left meanwhile."""
        end = time.monotonic() + seconds
        found: Any = None
        while time.monotonic() < end:
            try:
                found = self.run(f"!!({code})")
            except AssertionError as error:  # of a page that was just left, or is not there yet
                found = error
            else:
                if found:
                    return
            time.sleep(0.04)
        raise AssertionError(f"not true after {seconds} s: {code}: {found}")

    def point(self, element: str) -> tuple[float, float]:
        """Return the middle of an element, scrolled into view; AssertionError if a click there would hit another one.

        Args:
            element: an expression.
        """
        x, y, hit = self.run(
            f"(async () => {{ const e = {element}; e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " await new Promise(r => requestAnimationFrame(r)); const b = e.getBoundingClientRect();"
            " const x = b.x + b.width / 2, y = b.y + b.height / 2, over = document.elementFromPoint(x, y);"
            " return [x, y, e.contains(over) || over?.closest('label')?.contains(e) ? '' :"
            " (over?.outerHTML ?? 'nothing').slice(0, 200)]; })()"
        )
        assert hit == "", f"{element} is covered by {hit}"
        return x, y

    def click(self, element: str) -> None:
        """Click the middle of an element, given as an expression; `clicks` counts."""
        self.clicks += 1
        self.mouse(*self.point(element))

    def choose(self, select: str, value: str) -> None:
        """Choose a value of a field; the menu itself is the system's and is not opened."""
        self.run(
            f"{{ const s = {select}; s.focus(); s.value = {json.dumps(value)};"
            " s.dispatchEvent(new Event('input', {bubbles: true}));"
            " s.dispatchEvent(new Event('change', {bubbles: true})); }"
        )
