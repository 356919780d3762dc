"""The arguments, headers and bodies that a user sees: those that a page shows, without the values of ``wheel_mask``.

Without view_payload no byte of a message is read, arguments and headers are left out of a schedule's definition, and an
error is shown without the value that it quotes. The page of a message larger than MOST_BYTES links to the download.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from celery_wheel.store.ports.pages import Detail
from celery_wheel.values.mask import ERRORS, MASKED, Mask, unquoted
from django_wheel.project import masked_text, project_wheel
from django_wheel.views.page import may_view_payload

#: The largest message that the page of a task reads; it shows ``PART_CUT`` characters of each part.
MOST_BYTES = 100_000

#: The parts of a definition that are payload, by their paths.
_PAYLOAD = ("args", "kwargs", "options.headers", "options.link", "options.link_error")


@dataclass(frozen=True, slots=True)
class Sight:
    may: bool
    mask: Mask

    def message_values(self, detail: Detail) -> dict[str, Any]:
        if not self.may:
            return {"payload": "hidden"}
        if detail.task.size > MOST_BYTES:
            return {"payload": "large"}
        parts = {name: self.mask.part(getattr(detail, name)) for name in ("headers", "properties", "body")}
        return {"payload": "shown", "size": len(detail.body), "parts": parts}

    @property
    def most_bytes(self) -> int:
        return MOST_BYTES if self.may else 0

    def document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = self.mask.value(dict(document))
        if self.may:
            return shown
        options = shown.get("options")
        if isinstance(options, dict):
            shown["options"] = {name: value for name, value in options.items() if f"options.{name}" not in _PAYLOAD}
        return {name: value for name, value in shown.items() if name not in _PAYLOAD}

    def changed_value(self, path: str, text: str) -> str:
        """Return a value of a definition, as JSON, where a revision has changed it."""
        if not text:
            return text
        if self.mask.hides(path):
            return MASKED
        if path in ERRORS:
            return error_text(text, self.may)
        if not self.may and payload_of(path) is not None:
            return _("not shown")
        return self.mask.part(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def payload_of(path: str) -> str | None:
    """Return the part of a definition's payload in which a path is; None for another value. A text without a path is a
    whole definition that cannot be read."""
    found = [one for one in _PAYLOAD if f"{path}.".startswith(f"{one}.")]
    return found[0] if found else None if path else ""


def shortened(path: str) -> str:
    """Return a path that ends at the name of an argument or header: deeper keys are payload themselves."""
    part = payload_of(path)
    return path if not part else ".".join(path.split(".")[: part.count(".") + 2])


def error_text(text: str, may: bool) -> str:
    """Return the text of an error, which may quote an argument, as a user with or without view_payload sees it."""
    return masked_text(text if may else unquoted(text))


def sight_of(request: HttpRequest) -> Sight:
    return Sight(may_view_payload(request), project_wheel().mask)
