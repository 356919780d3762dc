"""``python -m tests.figures``: the size and shape of the packages, and what ``tests/unit/test_house.py`` holds of them.

::

                        files    lines     code   opening   under 40   folders over 15   circles
    celery_wheel          330   48,000      …      7,500          …                 …         0

    opening     the lines before the first statement of a file: its header and its imports
    under 40    files of fewer lines, empty ones and the facade of a package apart
    circles     modules that import each other, at any place of their code
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = 40


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def opening(self) -> int:
        """Return the number of lines before the first statement that is no import."""
        for node in self.tree.body:
            if not (_is_text(node) or isinstance(node, ast.Import | ast.ImportFrom)):
                return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
        return self.lines

    @property
    def code(self) -> int:
        """Return the number of lines that hold neither a docstring, nor a comment of its own, nor nothing."""
        held = {number for number, line in enumerate(self.text.splitlines(), 1) if line.strip()[:1] not in ("", "#")}
        for node in ast.walk(self.tree):
            if _is_text(node):
                held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return len(held)

    @property
    def is_small(self) -> bool:
        return 0 < self.lines < SMALL and not self.name.endswith("__init__.py")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def modules(package: str) -> list[Module]:
    return [
        Module(path.relative_to(ROOT).as_posix(), text := path.read_text(encoding="utf-8"), ast.parse(text))
        for path in sorted((ROOT / package).rglob("*.py"))
        if "/migrations/" not in path.as_posix()
    ]


def circles(found: list[Module]) -> list[list[str]]:
    """Return the circles of modules that import each other; of circles that share a module the first one found."""
    names = {one.name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): one for one in found}
    graph = {name: set(_imported(one.tree, names)) - {name} for name, one in names.items()}
    circles: list[list[str]] = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circles.append(sorted({*error.args[1]}))
            graph = {name: into.difference(circles[-1]) for name, into in graph.items() if name not in circles[-1]}
        else:
            return circles


def _imported(tree: ast.Module, names: Mapping[str, Module]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (one for one in inner if one in names)
            if any(one not in names for one in inner):
                yield node.module


def main() -> None:
    columns = ("files", "lines", "code", "opening", f"under {SMALL}", "folders over 15", "circles")
    print(f"{'':14}", *(f"{column:>16}" for column in columns), sep="")
    for package in ("celery_wheel", "django_wheel", "tests"):
        found = modules(package)
        folders = Counter(one.name.rpartition("/")[0] for one in found)
        figures = (
            len(found),
            sum(one.lines for one in found),
            sum(one.code for one in found),
            sum(one.opening for one in found),
            sum(one.is_small for one in found),
            sum(count > 15 for count in folders.values()),
            len(circles(found)),
        )
        print(f"{package:14}", *(f"{figure:>16,}" for figure in figures), sep="")


if __name__ == "__main__":
    main()
