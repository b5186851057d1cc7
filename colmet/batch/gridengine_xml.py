"""Incremental reader of the output of Grid Engine's commands with `-xml`.

It is not clean XML: names and environments of jobs are printed byte by byte as users set them, control characters
included; no encoding is declared; tasks that the master has read from its disk have tags with blanks; and an error is
plain text, sometimes with status 0.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from colmet.batch.answers import BatchError

MAX_BYTES = 128 << 20  # of an answer, filtered by `Sieve`; a job in that of qstat -j has 3 to 15 KB
MAX_DEPTH = 40  # of elements in one another; Grid Engine's own are 10 deep
MAX_ELEMENTS = 2_000_000  # in memory at once: a job's, or a host's; an array job has some 25 for each running task
_CHUNK = 1 << 18
_SAID = 200  # characters of a command's error text
_FORBIDDEN = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"  # in XML 1.0
_bad = re.compile(f"[{_FORBIDDEN}]")
_reference = re.compile("&#(x[0-9a-fA-F]{1,8}|[0-9]{1,8});")
_of_user = re.compile(b"<(JB_env_list|JB_job_args|JB_context)>")
_PART_OF_TAG = len("</JB_env_list>") - 1  # the longest of those
# a restarted master prints the tag of a task as <JATASK:       7.>, with 7 the job
_named = re.compile(r"<(/?[A-Z]{1,16}): {0,16}[0-9]{1,10}\.>")
_LONGEST = 48  # characters of a reference, and of those tags, but for their last


def read_elements(
    data: bytes, encoding: str, name: str, path: tuple[str, ...], keep: frozenset[str] | None = None
) -> Iterator[Element]:
    """Yield each element at a place of a document, as soon as it has been read; BatchError for another document.

    Invalid bytes become U+FFFD: else one user's job could make all others unreadable. `path` has the tags from the root
    on, "*" is any; `keep` those of the children to keep, None for all: the others cost little.
    """
    reader = _ElementReader(name, path, keep)
    for text in _mend_tags(_decode(data, encoding, name)):
        yield from reader.feed(text)
    yield from reader.feed("", last=True)


def child_text(element: Element, tag: str) -> str:
    """Return the text of an element's first child of this tag, without blanks around it; "" without one."""
    return (element.findtext(tag) or "").strip()


def check_encoding(encoding: str) -> None:
    """Raise BatchError if no text encoding has this name."""
    try:
        "<".encode(encoding)  # unlike codecs.lookup, refuses codecs that are not for text
    except (LookupError, ValueError) as err:
        raise BatchError(f"no encoding is named {encoding!r}; such as utf-8 or iso-8859-15") from err


class Sieve:
    """Filter of a stream that removes the content of jobs' environments, arguments and contexts, but keeps their tags.

    They are most of the text and not used here; users control their content and size.
    """

    def __init__(self) -> None:
        self._end = b""  # the tag that ends the removed content; empty outside
        self._last = b""  # of the last part: a tag may have begun there

    def keep(self, part: bytes) -> bytes:
        """Return the filtered text of the next part."""
        kept = []
        text, start = self._last + part, len(self._last)
        while True:
            if self._end:
                behind = text.find(self._end) + len(self._end)
                if behind < len(self._end):
                    break
                kept.append(self._end)
                self._end = b""
            else:
                tag = _of_user.search(text)
                if tag is None:
                    kept.append(text[start:])
                    break
                behind = tag.end()
                kept.append(text[start:behind])
                self._end = b"</" + tag[1] + b">"
            text, start = text[behind:], 0
        self._last = text[-_PART_OF_TAG:]
        return b"".join(kept)


class _ElementReader:
    """Builder of the elements at the path; all others are discarded."""

    def __init__(self, name: str, path: tuple[str, ...], keep: frozenset[str] | None) -> None:
        self._name = name
        self._path = path
        self._keep = keep
        self._depth = self._skipped = self._elements = 0
        self._on_path = 0  # how much of the path the open elements are
        self._builder: TreeBuilder | None = None
        self._done: list[Element] = []
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._refuse
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def feed(self, text: str, last: bool = False) -> list[Element]:
        try:
            self._parser.Parse(text, last)
        except expat.ExpatError as err:
            raise BatchError(f"{self._name}: no whole XML document: {err}; is it being written, or cut?") from err
        done, self._done = self._done, []
        return done

    def _refuse(self, *_: object) -> None:
        raise BatchError(f"{self._name}: has a DOCTYPE, which Grid Engine never prints; refused")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BatchError(f"{self._name}: more than {MAX_DEPTH} elements in one another; refused")
        if self._skipped:
            return
        if self._builder is not None:
            if self._keep is not None and self._depth == len(self._path) + 1 and tag not in self._keep:
                self._skipped = self._depth
                self._parser.CharacterDataHandler = None
                return
        elif self._on_path == self._depth - 1 and self._path[self._on_path] in (tag, "*"):
            self._on_path = self._depth
            if self._on_path < len(self._path):
                return
            self._builder = TreeBuilder()
            self._elements = 0
            self._parser.CharacterDataHandler = self._builder.data
        elif self._depth == 1 and tag != "unknown_jobs":  # <unknown_jobs>: no job exists
            raise BatchError(f"{self._name}: begins with <{tag[:50]}>, not <{self._path[0]}>: another command's?")
        else:
            return
        self._elements += 1
        if self._elements > MAX_ELEMENTS:
            raise BatchError(f"{self._name}: one <{self._path[-1]}> has more than {MAX_ELEMENTS} elements; refused")
        self._builder.start(tag, attributes)

    def _end(self, tag: str) -> None:
        if self._skipped:
            if self._skipped == self._depth:
                self._skipped = 0
                assert self._builder is not None
                self._parser.CharacterDataHandler = self._builder.data
        elif self._builder is not None:
            self._builder.end(tag)
            if self._depth == len(self._path):
                self._done.append(self._builder.close())
                self._builder = self._parser.CharacterDataHandler = None
        self._depth -= 1
        if self._on_path > self._depth:
            self._on_path = self._depth


def _decode(data: bytes, encoding: str, name: str) -> Iterator[str]:
    """Yield its text in parts, with U+FFFD for invalid bytes and for each character that XML forbids."""
    if len(data) > MAX_BYTES:
        raise BatchError(f"{name}: more than {MAX_BYTES >> 20} MiB; refused")
    check_encoding(encoding)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    sieve = Sieve()
    left = ""
    for start in range(0, max(len(data), 1), _CHUNK):
        chunk = sieve.keep(data[start : start + _CHUNK])
        try:
            text = left + decoder.decode(chunk, final=start + _CHUNK >= len(data))
        except ValueError as err:  # some encodings cannot replace anything
            raise BatchError(f"{name}: is not in {encoding}: {err}; such as utf-8 or iso-8859-15") from err
        if start == 0:
            text = text.lstrip("\ufeff \t\r\n")
            if not text.startswith("<"):
                said = " ".join(_bad.sub(" ", text[: 2 * _SAID]).split())[:_SAID]
                raise BatchError(f"{name}: {said or 'said nothing'}; is the master up, and may this host ask it?")
        text, left = _split(text, "&", ";")
        yield _reference.sub(_allowed, _bad.sub("\ufffd", text))
    yield left


def _mend_tags(texts: Iterator[str]) -> Iterator[str]:
    """Remove the blanks from the tags of tasks."""
    left = ""
    for part in texts:
        text, left = _split(left + part, "<", ">")
        yield _named.sub(r"<\1>", text) if ".>" in text else text
    yield left


def _split(text: str, begin: str, end: str) -> tuple[str, str]:
    """Split off the possible beginning of a tag or reference that ends in the next part."""
    place = text.rfind(begin, max(len(text) - _LONGEST, 0))
    return (text, "") if place < 0 or end in text[place:] else (text[:place], text[place:])


def _allowed(reference: re.Match[str]) -> str:
    digits = reference[1]
    number = int(digits[1:], 16) if digits[0] == "x" else int(digits)
    if number > 0x10FFFF or _bad.match(chr(number)):
        return "\ufffd"
    return reference[0]
