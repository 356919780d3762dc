"""``wheel_mask``: the names of values that nobody sees, on a page, in the output of a command or in an error.

::

    {"user": 7, "password": "x"}            ─► {"user": 7, "password": "********"}     JSON of any depth
    kwargsrepr: "{'password': 'x'}"         ─► "{'password': '********'}"              the text that Celery sends along
    kwargs.password must be a text, got 5   ─► … got ********                          an error that quotes a value
    b"\\x80\\x05…"                            ─► a note with its size                    bytes that are no JSON

Case is ignored. A positional argument has no name, so only the values inside of it are masked. The store, the broker
and an export keep every value. Standard library only.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from typing import Any

#: The word in the place of a value.
MASKED = "********"

#: Headers in which Celery sends arguments as text, for people.
_REPRS = ("argsrepr", "kwargsrepr")

#: Fields of a stored definition with the text of an error.
ERRORS = ("broken", "base")

#: A value in a text: a whole literal of a string, a plain word before a delimiter, or all that follows.
_VALUE = r"""(?:[bBrRuU]{0,2}(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|[\w.+-]+(?=[\s,;)\]}]|$)|.*)"""

#: The value that an error quotes, which ends its text.
_QUOTED = re.compile(r"\bgot\s.*", re.S)


def unquoted(text: str) -> str:
    """Return the text of an error without the value that it quotes."""
    return _QUOTED.sub("got …", text)


class Mask:
    """Hides the values of some names; false without names."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(name.casefold() for name in names)
        named = "|".join(map(re.escape, sorted(self.names, key=len, reverse=True)))
        #: A name with its value, also where the quotes are escaped: a text in a text; or with the value that an error
        #: quotes further on.
        self._quoted = re.compile(
            rf"""(?P<before>(?<!\w)(?:{named})(?!\w)(?:(?:\\*['"])?\s*[:=]\s*|.*?\bgot\s+)){_VALUE}""", re.I | re.S
        )

    def __bool__(self) -> bool:
        return bool(self.names)

    def hides(self, path: str) -> bool:
        """Whether a value has a masked name, or is inside of one that has: names are joined by dots."""
        inside = f".{path.casefold()}."
        return any(f".{name}." in inside for name in self.names)

    def value(self, value: Any) -> Any:
        """Return values of JSON, or of a literal of Python, with the mask."""
        if isinstance(value, dict):
            return self._object(value.items(), self.value)
        if isinstance(value, list | tuple):
            return type(value)(map(self.value, value))
        return value

    def part(self, raw: bytes) -> bytes:
        """Return headers, properties or a body with the mask; a note where they are no JSON, and cannot be masked."""
        if not self or not raw:
            return raw
        try:
            # Each object is masked while it is read: of two values of one name, JSON keeps the last.
            shown = json.loads(raw, object_pairs_hook=self._object)
        except (ValueError, RecursionError):
            return f"({len(raw):,} bytes that are no JSON: wheel_mask cannot hide a value in them)".encode()
        return json.dumps(shown, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def text(self, text: str) -> str:
        """Return a text in which an error may quote values, with the mask."""
        return self._quoted.sub(lambda found: found["before"] + MASKED, text) if self else text

    def literal(self, text: str) -> str:
        """Return Python's literal of arguments with the mask; the mask alone where a value cannot be told apart."""
        if not any(name in text.casefold() for name in self.names):
            return text
        try:
            return repr(self.value(ast.literal_eval(text)))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return MASKED

    def restored(self, new: Any, old: Any) -> Any:
        """Return values with the former ones in place of the user's masks. ValueError names a mask without one."""
        return self._restored(new, old, "")

    def _object(self, pairs: Iterable[tuple[Any, Any]], inner: Any = None) -> dict[Any, Any]:
        return {name: self._field(name, value, inner) for name, value in pairs}

    def _field(self, name: Any, value: Any, inner: Any) -> Any:
        if isinstance(name, str) and name.casefold() in self.names:
            return MASKED
        if name in _REPRS and isinstance(value, str):
            return self.literal(value)
        if name in ERRORS and isinstance(value, str):
            return self.text(value)
        return value if inner is None else inner(value)

    def _restored(self, new: Any, old: Any, path: str) -> Any:
        if isinstance(new, dict):
            was = old if isinstance(old, dict) else {}
            return {name: self._restored(one, was.get(name), f"{path}.{name}") for name, one in new.items()}
        if isinstance(new, list):
            # An item has no name: after one was removed, a mask would get the value of its neighbour.
            before = old if isinstance(old, list) and len(old) == len(new) else [None] * len(new)
            return [self._restored(one, before[number], f"{path}[{number}]") for number, one in enumerate(new)]
        if new != MASKED or not self.hides(re.sub(r"\[\d+\]", "", path)):
            return new
        if old is None:
            raise ValueError(f"{path.removeprefix('.')} must be a value, got the mask of another")
        return old


#: Hides nothing.
NO_MASK = Mask()
