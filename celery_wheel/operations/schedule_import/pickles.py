"""Pickles of plain values: texts, numbers, lists, dicts. A pickle that names a class or a function is not opened.

A pickle can only run code by naming what to call, so a reader that finds no name at all runs none.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from celery_wheel.operations.schedule_import.foreign import NotImportable


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise NotImportable(f"its pickle has an object of {module}.{name}, and not only values of JSON")


def plain_value(raw: bytes) -> Any:
    """Return the value of a pickle. Raises NotImportable."""
    try:
        return _PlainUnpickler(io.BytesIO(raw)).load()
    except NotImportable:
        raise
    except Exception as error:  # bytes that are no pickle raise nearly anything
        raise NotImportable(f"its bytes must be a pickle, got {raw[:20]!r} ({error})") from None
