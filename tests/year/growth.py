"""A walk over everything that a process of the scheduler reaches, which measures each container.

::

    scheduler ─► attributes, slots, items, closures, methods, partials ─► sizes of containers by path
                 _service._runner.shards[]._backoffs     the items of a list, a dict or a set are one path

A container grows where it was larger at each of STEPS measurements one after the other, by LEAST in all. A deque with
a bound does not. The walk leaves out classes, modules and functions of others, the models of the year, Celery's app.
"""

import sys
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

STEPS = 4
LEAST = 4

#: Where the walk does not go, by the module of the class.
OTHERS = ("tests.", "celery.", "kombu.", "sqlalchemy.", "greenlet", "logging", "unittest", "_weakref", "weakref")

PLAIN = (str, bytes, int, float, bool, type(None), type, ModuleType, BuiltinFunctionType, property)


class Growth:
    def __init__(self) -> None:
        self._of: dict[str, list[Counter[str]]] = {}

    def measure(self, process: str, *roots: object) -> list[str]:
        """Measure once more; returns the containers that grow, with their sizes."""
        sizes = self._of.setdefault(process, [])
        sizes.append(walk(roots))
        if len(sizes) <= STEPS + 1:  # the first is of a process that is still filling
            return []
        last = sizes[-STEPS - 1 :]
        paths = set().union(*last)
        found = []
        for path in sorted(paths):
            series = [one[path] for one in last]
            if all(a < b for a, b in pairwise(series)) and series[-1] - series[0] >= LEAST:
                found.append(f"{path}: {series}")
        return found

    def measured(self, process: str) -> int:
        return len(self._of.get(process, []))


def walk(roots: tuple[object, ...]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    left: deque[tuple[str, Any]] = deque((type(root).__name__, root) for root in roots)
    kept = []  # temporary objects stay alive, so that no address is used twice
    while left:
        path, one = left.popleft()
        if isinstance(one, PLAIN) or id(one) in seen:
            continue
        seen.add(id(one))
        kept.append(one)
        if isinstance(one, (list, tuple, set, frozenset, deque, Mapping, bytearray)):
            bounded = isinstance(one, deque) and one.maxlen is not None
            sizes[path] += 0 if bounded else len(one)
            if isinstance(one, Mapping):
                named = all(isinstance(key, str) and key.isidentifier() for key in one) and len(one) < 40
                left.extend((f"{path}.{key}" if named else f"{path}[]", value) for key, value in list(one.items()))
                left.extend((f"{path}.keys", key) for key in list(one) if not isinstance(key, PLAIN))
            else:
                left.extend((f"{path}[]", value) for value in list(one))
        left.extend((f"{path}{name}", value) for name, value in parts(one))
    return sizes


def parts(one: Any) -> list[tuple[str, Any]]:
    if isinstance(one, MethodType):
        return [("()", one.__self__)]
    if isinstance(one, partial):
        return [(".func", one.func), (".args", one.args)]
    if isinstance(one, CellType):
        return [("", one.cell_contents)] if one != CellType() else []
    if isinstance(one, FunctionType):
        if not one.__module__.startswith("celery_wheel"):
            return []
        return [("{}", cell) for cell in one.__closure__ or ()]
    if type(one).__module__.startswith(OTHERS) and not hasattr(type(one), "__growth__"):
        return []
    found = [(f".{name}", value) for name, value in getattr(one, "__dict__", {}).items()]
    for cls in type(one).__mro__:
        for name in _slots(cls):
            if hasattr(one, name) and name not in ("__dict__", "__weakref__"):
                found.append((f".{name}", getattr(one, name)))  # noqa: PERF401 - two conditions read better
    return found


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(f"_{cls.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names)


def globals_of_the_product() -> dict[str, Any]:
    """Return the containers at the top of the product's modules: caches of a process."""
    return {
        f"{name}.{key}": value
        for name, module in sorted(sys.modules.items())
        if name.startswith("celery_wheel.")
        for key, value in vars(module).items()
        if isinstance(value, list | dict | set | deque) and not key.startswith("__")
    }
