"""Check integer arguments and their range. A file of its own, since the wheel and the clocks need it.

The wheel's arithmetic would accept a float and then be wrong: above 2**53 a float cannot represent each millisecond. A
value with ``__index__`` (bool, IntEnum, NumPy's integers) is converted to a plain ``int``.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex


def integer(name: str, value: SupportsIndex, *, at_least: int | None = None) -> int:
    """Return ``value`` as a plain int. Raises TypeError or ValueError, beginning with the name of the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    number = int(number)
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {number}")
    return number
