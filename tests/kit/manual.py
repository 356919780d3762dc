"""The manual: README.md and the pages of docs/, as the tests of the documentation read them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
#: Pages of the built site alone: their text is that of others, and of docstrings.
OF_THE_SITE = {DOCS / f"{name}.md" for name in ("index", "api", "changes", "contributing", "security")}
#: Path of each other page → its text.
PAGES = {
    path: path.read_text(encoding="utf-8") for path in (README, *sorted(DOCS.glob("*.md"))) if path not in OF_THE_SITE
}
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def page(name: str) -> str:
    return PAGES[DOCS / name]


def code(text: str, language: str) -> Iterator[str]:
    return (found[1] for found in re.finditer(rf"```{language}\n(.*?)```", text, re.DOTALL))


def commands(text: str) -> set[str]:
    """Return every command line, in blocks and in running text."""
    lines = {line.removeprefix("$ ") for block in code(text, "console") for line in block.splitlines()}
    return lines | set(re.findall(r"`([^`\n]+)`", FENCED.sub("", text)))


def wheel_commands() -> dict[str, Any]:
    """Return each command of ``celery wheel`` by its name; "schedules list" is one of a group, itself perhaps one."""
    from celery_wheel.cli import wheel

    found: dict[str, Any] = {}
    for name, command in wheel.commands.items():
        of_group = getattr(command, "commands", None)
        if of_group is None or command.invoke_without_command:
            found[name] = command
        found |= {f"{name} {one}": sub for one, sub in (of_group or {}).items()}
    return found


def links(text: str) -> set[str]:
    return set(re.findall(r"\]\((?!https?:)([^)\s]+)\)", FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
