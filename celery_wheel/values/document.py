"""JSON of the store that a program of another version, or a person, may have written. Standard library only."""

from __future__ import annotations

import json
from typing import Any


def json_object(text: str) -> dict[str, Any]:
    """Return the object of a JSON text; empty where the text has none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
