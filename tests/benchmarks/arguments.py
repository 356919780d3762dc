"""Arguments of tasks as a shop has them: names, ids, prices and dates that differ from task to task.

::

    arguments(rng, 600)    an order of exactly 600 bytes of JSON      the usual size
    arguments(rng, 0)      no arguments
    arguments(rng, 10)     a string; from ``SMALLEST`` bytes on an order, with as many lines as fit

A compressor finds the same words in all of them, and the values in none other, as it does in real arguments. A body
that repeats one character would shrink to nothing.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any
from uuid import UUID

from celery.utils.saferepr import saferepr

NAMES, SURNAMES, WORDS = (
    text.split()
    for text in (
        "Amina Berg Chiara Dmitri Elif Farid Greta Hugo Ingrid Jonas Keiko Lena Mateo Nadia Oskar Priya Rosa Sven Ulla",
        "Almeida Bauer Costa Dahl Eriksen Fontaine Gruber Haas Ivanova Janssen Kowalski Lindqvist Moreau Novak Tanaka",
        "please deliver after noon to the neighbour on second floor ring twice leave at door gift wrap without invoice "
        "call before arrival fragile handle with care urgent birthday return paper bag",
    )
)
CURRENCIES = ("EUR", "USD", "SEK", "PLN", "JPY")

#: The smallest order; fewer bytes of arguments are one string.
SMALLEST = 400

#: Celery's limit for ``argsrepr`` and ``kwargsrepr``.
REPR_CHARS = 1_024


def arguments(rng: Random, size: int) -> dict[str, Any]:
    """Return keyword arguments whose JSON has ``size`` bytes; of fewer than 10 bytes there are none."""
    if size < SMALLEST:
        return {"n": f"{rng.getrandbits(4 * (size - 9)):0{size - 9}x}"} if size >= 10 else {}
    order = _order(rng)
    left = size - len(json.dumps(order))
    while left > 200:
        line = _line(rng)
        order["lines"].append(line)
        left -= len(json.dumps(line)) + len(", ")
    order["note"] = _words(rng, left)
    return order


def repr_of(found: dict[str, Any]) -> str:
    """Return what Celery writes into the header ``kwargsrepr``; ``repr`` is the same, and faster, where it fits."""
    text = repr(found)
    return text if len(text) < REPR_CHARS else saferepr(found, REPR_CHARS)


def _order(rng: Random) -> dict[str, Any]:
    name, surname = rng.choice(NAMES), rng.choice(SURNAMES)
    bits = rng.getrandbits(330)
    return {
        "order_id": str(UUID(int=bits & 2**128 - 1, version=4)),
        "number": bits >> 180 & 0x3FFFFFFF,
        "customer": f"{name} {surname}",
        "email": f"{name}.{surname}{bits >> 210 & 0x3FF}@example.org".lower(),
        "placed_at": f"2026-{1 + (bits >> 220) % 12:02}-{1 + (bits >> 230) % 28:02}T{(bits >> 240) % 24:02}:"
        f"{(bits >> 250) % 60:02}:{(bits >> 260) % 60:02}.{(bits >> 270) % 1_000_000:06}+00:00",
        "currency": CURRENCIES[(bits >> 300) % len(CURRENCIES)],
        "total": round(rng.random() * 900, 2),
        "lines": [_line(rng)],
        "note": "",
    }


def _line(rng: Random) -> dict[str, Any]:
    bits = rng.getrandbits(64)
    return {
        "sku": f"{bits & 0xFFFFFF:06X}-{bits >> 24 & 0xFF}",
        "quantity": 1 + (bits >> 32) % 9,
        "price": (bits >> 36) % 20_000 / 100,
        "gift": bool(bits >> 63),
    }


def _words(rng: Random, size: int) -> str:
    """Return words that are ``size`` bytes together; the last one may be cut."""
    return " ".join(rng.choices(WORDS, k=size // 3 + 1))[:size]
