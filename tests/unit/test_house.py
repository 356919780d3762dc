"""Rules of the house that a reviewer need not check by hand: small files, circles, names, and openings of sentences."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import figures

ROOT = Path(__file__).parents[2]
PACKAGES = ("celery_wheel", "django_wheel")
#: Modules that users import by name; everything else stands in a room.
FACADES = {"__init__", "app", "beat", "control", "errors"}
#: The sentence in the header of a small file that begins with its reason.
ALONE = "A file of its own"

#: Names that frameworks choose: Django finds these by name.
GIVEN_NAMES = {"Meta", "Migration", "Command"}
#: Pages of the admin: Django makes addresses and permissions of the names of their models.
PAGE_NAMES = {"Group", "Schedule", "Settlement", "Wheel"}

#: A sentence has a named subject. ``What waits ...`` has none; a question may begin so.
HEADLESS = re.compile(r"(What|Who|Whoever|Whom|Whose|Whichever|Whatever|Of|Those)\b")


#: Comments of their own lines, those of neighbouring lines together, and comments behind code.
COMMENT = re.compile(r"(?:^[ \t]*#.*\n)+|(?<=  )#.*", re.MULTILINE)


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_the_top_of_the_package_holds_only_facades() -> None:
    assert {path.stem for path in (ROOT / "celery_wheel").glob("*.py")} == FACADES


def test_a_small_file_says_why_it_is_alone() -> None:
    """One idea is read in one place: a reader follows it through five files of thirty lines with more pains."""
    small = [one for package in PACKAGES for one in figures.modules(package) if one.is_small]
    assert [one.name for one in small if ALONE not in (ast.get_docstring(one.tree) or "")] == []


def test_each_module_logs_without_invisible_characters() -> None:
    """Timing, on the same floor as the loggers, logs no name that a message brings."""
    raw = [name for name, text in modules(*PACKAGES) if "logger = logging.getLogger" in text]
    assert [name for name in raw if "/timing/" not in name] == ["celery_wheel/values/log.py"]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other(package: str) -> None:
    assert figures.circles(figures.modules(package)) == []


def test_one_class_name_has_one_meaning() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for name, text in modules(*PACKAGES):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].add(name)
    doubles = {name: sorted(found) for name, found in places.items() if len(found) > 1}
    assert doubles.keys() - GIVEN_NAMES - PAGE_NAMES == set(), doubles


def test_the_name_of_a_test_has_a_subject() -> None:
    name = re.compile(r"def test_(what|who|whoever|of)_\w+")
    assert [found[0] for _, text in modules("tests") for found in name.finditer(text)] == []


@pytest.mark.slow
def test_every_command_and_page_in_a_text_for_people_can_be_followed_as_printed() -> None:
    """``celery wheel`` needs ``-A``; a shell reads ``<project>`` as a file; an installed user has no folder docs/."""
    found = [
        f"{name}: {text}"
        for name, source in modules(*PACKAGES)
        for text in printed(ast.parse(source))
        if re.search(r"celery (wheel|beat) [a-z-]|-A <", text)
        or ("docs/" in text and name != "celery_wheel/conf/__init__.py")  # the table of settings makes links of them
    ]
    assert found == []


def printed(tree: ast.AST) -> Iterator[str]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.slow
def test_no_sentence_opens_without_a_subject() -> None:
    headless = []
    for name, text in modules(*PACKAGES, "example_project", "tests"):
        headless += [f"{name}: {sentence}" for block in texts(text) for sentence in sentences(block)]
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        blocks = (re.sub(r"^[#>*\s-]+|^\d+\. ", "", line) for line in prose.splitlines())
        headless += [f"{path.name}: {sentence}" for block in blocks for sentence in sentences(block)]
    assert headless == []


def texts(source: str) -> Iterator[str]:
    """Docstrings, help texts, and comments; the lines of one comment belong together."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.keyword) and node.arg in ("help", "help_text", "short_help"):
            yield str(getattr(node.value, "value", ""))
    for block in COMMENT.findall(source):
        yield " ".join(line.strip().lstrip("#: ") for line in block.splitlines())


def sentences(block: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", block):
        for sentence in re.split(r"(?<=[.!?:;]) +(?=[A-Z])", " ".join(paragraph.split())):
            if HEADLESS.match(sentence) and "?" not in sentence:
                yield sentence[:100]
