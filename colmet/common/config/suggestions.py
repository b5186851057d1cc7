"""Suggestions for misspelt words."""

from __future__ import annotations

from collections.abc import Iterable

MAX_WORD = 100  # compared characters
MAX_NAMED = 3
ALIKE = 0.65  # "system" is not meant by "team"


def near(word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return at most `count` known words like a word, the best first; case, dashes and underscores are ignored.

    The minimum similarity `cutoff` is from 0 to 1.
    """
    import difflib  # here: it is large, and rarely needed

    forms = {_form(one): one for one in known}
    form = _form(word[:MAX_WORD])
    begins = [one for one in forms if len(form) > 2 and one.startswith(form)]
    like = difflib.get_close_matches(form, forms, n=count, cutoff=cutoff)
    best = like if like and like[0] == form else [*begins, *like]
    return [forms[one] for one in dict.fromkeys(best)][:count]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message, ``; did you mean ...?``, or nothing if no known word is near.

    If none is, it names those that begin with a word near it: memory_peak for memori.
    """
    words = list(known)
    found = near(word, words, cutoff=ALIKE)
    if not found:
        beginnings = {known_word: _form(known_word).partition("-")[0] for known_word in words}
        beginning = near(word, beginnings.values(), cutoff=ALIKE)
        found = [known_word for known_word in words if beginnings[known_word] in beginning][:MAX_NAMED]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _form(word: str) -> str:
    return word.lower().replace("_", "-").lstrip("-")
