"""The parts of the manual that the code itself writes: tables of settings, objects, metrics, checks, the wheel at work.

::

    docs/settings.md      <!-- settings: begin -->          each part stands between two such comments
                          …
                          <!-- settings: end -->
    docs/schema.md        <!-- tables -->                   a part that the site alone has

``python -m tests.kit.generated`` writes all parts anew; ``tests/test_docs.py`` finds one that is out of date.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import Any

import click
import msgspec
import yaml
from sqlalchemy import Index, UniqueConstraint
from sqlalchemy.dialects import postgresql

from celery_wheel.broker.envelope import Envelope
from celery_wheel.conf import settings
from celery_wheel.metrics.samples import METRICS, Kind
from celery_wheel.operations import doctor
from celery_wheel.pipeline.cli import make_command
from celery_wheel.pipeline.jobs import JOBS
from celery_wheel.requests.results import CompletionResult
from celery_wheel.store.audit_model import AuditedRequest
from celery_wheel.store.model import Gate
from celery_wheel.store.ports.pages import (
    Detail,
    GroupState,
    NamedHourCount,
    Names,
    StoppedTask,
    StoredSettlement,
    Task,
)
from celery_wheel.store.sql import schema
from celery_wheel.timing import TimingWheel
from tests.kit.manual import DOCS, ROOT, page, wheel_commands
from tests.kit.rooms import FLOOR

#: The examples of commands, which ``test_cli_doc.py`` runs.
EXAMPLES = (ROOT / "tests/integration/cli/examples.md").read_text(encoding="utf-8")
#: The worked example of docs/architecture.md: instants at which five timers are due.
FIVE = (5, 35, 446, 455, 9_000)


def table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(["", f"| {head} |", "|" + "---|" * (head.count(" | ") + 1), *lines, "", ""])


def settings_table() -> str:
    """Return the settings; the name of one leads to the page that the end of its sentence names."""

    def rows() -> Iterator[tuple[str, ...]]:
        for name, default, sentence in settings():
            said, _, more = re.sub(r"[;.] [Ss]ee docs/(\S+)\.$", r"|\1", sentence).partition("|")
            yield (
                (f"[`{name}`]({more})", default_cell(default), f"{said}.")
                if more
                else (
                    f"`{name}`",
                    default_cell(default),
                    linked(said),
                )
            )

    return table("setting | default | what it does", rows())


def linked(sentence: str) -> str:
    """Return a sentence with links to the pages that it names by their files."""

    def link(found: re.Match[str]) -> str:
        [title] = re.findall(r"\A# (.*)$", page(found[1]), re.MULTILINE)
        return f"[{title}]({found[1]})"

    return re.sub(r"docs/([\w-]+\.md)", link, sentence)


def default_cell(default: Any) -> str:
    return f"`{default:_}`" if type(default) is int else f"`{default!r}`"


def metrics_table() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for metric in METRICS.values():
            name = metric.full_name + "_total" * (metric.kind is Kind.COUNTER)
            yield f"`{name}`", metric.kind.value, ", ".join(f"`{label}`" for label in metric.labels), metric.help

    return table("metric | type | labels | what it is", rows())


def system_checks() -> str:
    """Return the system checks as the header of ``django_wheel.checks`` lists them in two columns."""

    def rows() -> Iterator[tuple[str, ...]]:
        source = (ROOT / "django_wheel/checks.py").read_text(encoding="utf-8")
        left = ""
        for line in str(ast.get_docstring(ast.parse(source))).splitlines():
            left = " (`migrate` alone)" if line.strip() == "migrate" else left
            for found in re.finditer(r"([EIW]\d{3})  (\S.*?)(?=\s{2,}|$)", line):
                yield f"`django_wheel.{found[1]}`", found[2] + (left if found.start() < 30 else " (`--deploy`)")

    return table("check | finding", iter(sorted(rows(), key=lambda row: row[0][-4:])))


def doctor_checks() -> str:
    """Return the checks of ``doctor`` as the header of its room lists them."""
    header = str(doctor.__doc__).split("::\n")[1].split("\n\n``")[0]
    entries = re.split(r"\n {4}(?=\w)", header)[1:]
    return table("check | looks at", (tuple(" ".join(one.split()).split(" ", 1)) for one in entries))


def envelope_fields() -> str:
    """Return the fields of the envelope by its JSON schema."""
    found = msgspec.json.schema(Envelope)["$defs"]["Envelope"]

    def rows() -> Iterator[tuple[str, ...]]:
        for name, one in found["properties"].items():
            type_ = next(kind["type"] for kind in one.get("anyOf", [one]) if kind["type"] != "null")
            yield f"`{name}`", type_, re.sub(r"; (Unix )?milliseconds(, rounded up)?$", r"\2", one["description"])

    names, required = list(found["properties"]), found["required"]
    assert names[: len(required)] == required, "the page says that the first eight are required"
    return table("field | type | meaning", rows())


def tables() -> str:
    """Return the tables of the store: sentences of the header of ``schema``, and comments of the columns."""
    purposes = dict(re.findall(r"^ *(?:└ )?(wheel_\w+) {2,}(\S.*?)(?: {2,}.*)?$", str(schema.__doc__), re.MULTILINE))
    purposes["wheel_meta"] = re.sub(r"^one row: ", "", purposes["wheel_meta"])
    return "\n" + "".join(map(table_of_the_store, purposes, purposes.values()))


#: Comments of columns that the opening of docs/schema.md explains once.
OF_MANY_TABLES = ("number of the shard, from 0", "no meaning; Django wants a single key")


def table_of_the_store(name: str, purpose: str) -> str:
    one = schema.metadata.tables[name]
    unique = [each for each in one.constraints if isinstance(each, UniqueConstraint)]
    indexes = [(str(each.name), [column.name for column in each.columns], some_rows(each)) for each in one.indexes]
    indexes += [(str(each.name), [column.name for column in each.columns], ", unique") for each in unique]
    listed = "; ".join(f"({', '.join(columns)}){suffix}" for _, columns, suffix in sorted(indexes))
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    columns = table(
        "column | type | meaning",
        (
            (f"`{c.name}`", c.type.compile(dialect=dialect) + " or null" * bool(c.nullable), meaning(str(c.comment)))
            for c in one.columns
            if c.comment not in OF_MANY_TABLES
        ),
    )
    opening = purpose[0].upper() + purpose[1:].removesuffix(" …")
    return f"## {name}\n\n{opening}.\n{columns}" + (f"Indexes: {listed}.\n\n" if indexes else "")


def meaning(comment: str) -> str:
    """Return a comment without the unit of every column whose name ends in ``_ms``."""
    return re.sub(r"; (instant, Unix milliseconds|duration in milliseconds)", "", comment).split(", Unix")[0]


def some_rows(index: Index) -> str:
    condition = index.dialect_options["postgresql"]["where"]
    return "" if condition is None else f", where {condition}"


def command_sections() -> str:
    """Return each command of ``celery wheel`` with its help, its options, and an example that a test runs."""
    found = dict(re.findall(r"^### ([^\n]*)\n\n(```console\n.*?```)", EXAMPLES, re.DOTALL | re.MULTILINE))
    sections = (section_of(name, command, found[name]) for name, command in sorted(wheel_commands().items()))
    return "\n\n".join(sections) + "\n"


def section_of(name: str, command: click.Command, example: str) -> str:
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    text = f"`celery -A proj wheel {name} {usage}`\n\n{markdown(inspect.cleandoc(str(command.help)))}"
    return f"### {name}\n\n{text}\n{options_table(command)}\n{example}\n"


def job_options(name: str) -> str:
    """Return the options of a job of ``celery-wheel-pipeline``, without those that every job has."""
    return options_table(make_command(name), ("--json", "--master", "--remote"))


def markdown(text: str) -> str:
    """Return the help of a command with its literals as code; click shows a paragraph after ``\\b`` as it stands."""

    def paragraph(one: str) -> str:
        return literals(one) if not one.startswith("\b") else "```text" + one.removeprefix("\b") + "\n```"

    return "\n\n".join(map(paragraph, text.split("\n\n")))


def literals(text: str) -> str:
    """Return a sentence with its options, settings and other literals as code."""
    parts = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r'wheel=\{.*?\}|--[a-z][a-z-]*|\b\w*(?:_\w+)+|"\w+"', r"`\g<0>`", parts[at])
    return "".join(parts)


def options_table(command: click.Command, without: Container[str] = ()) -> str:
    """Return the options of a command with their help; empty where it has none."""
    context = click.Context(command)
    options = [one for one in command.params if isinstance(one, click.Option) and one.opts[0] not in without]
    records = [record for one in options if (record := one.get_help_record(context)) is not None]
    return table("option | meaning", ((f"`{name}`", literals(text)) for name, text in records)) if records else ""


#: The methods of ``app.wheel`` → the class of their items or results.
OBJECTS: dict[str, type[Any]] = {
    "items of `pending`, `history`": Task,
    "`get`, items of `find`": Detail,
    "items of `outcomes`": StoppedTask,
    "items of `settlements`": StoredSettlement,
    "`counts`": Names,
    "items of `forecast`": NamedHourCount,
    "items of `gates`": Gate,
    "items of `groups`": GroupState,
    "items of `audit`": AuditedRequest,
    "`complete`": CompletionResult,
}


def objects() -> str:
    rows = ((method, "; ".join(fields_of(of)).replace("``", "`")) for method, of in OBJECTS.items())
    return table("returned by | fields", rows)


def fields_of(of: type[Any]) -> Iterator[str]:
    lines = inspect.getsource(of).splitlines()
    for node in ast.parse(textwrap.dedent("\n".join(lines))).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign):
            comment = lines[node.lineno - 1].partition("#: ")[2]
            yield f"`{ast.unparse(node.target)}`" + (f" ({comment})" if comment else "")
        elif isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == "property" for one in node.decorator_list):
            said = (ast.get_docstring(node) or "").split("\n")[0].rstrip(".")
            yield f"`{node.name}`" + (f" ({said[0].lower()}{said[1:]})" if said else "")


def numbers(values: Iterable[Any]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def five_scheduled() -> TimingWheel:
    wheel = TimingWheel(tick_ms=1, wheel_size=20)
    for due_ms in FIVE:
        wheel.schedule(due_ms, due_ms)
    return wheel


def wheel_drawn() -> str:
    """Return the levels of a wheel with the five timers, each bucket with its number of timers."""
    lines = []
    for level in five_scheduled().levels():
        counts = {bucket.index: str(bucket.pending) for bucket in level.buckets}
        cells = "│".join(counts.get(index, " ") for index in range(level.wheel_size))
        held = "   ".join(
            f"bucket {bucket.index} (from {bucket.expiration_ms:,}): {numbers(bucket.timer_ids())}"
            for bucket in level.buckets
        )
        lines.append(f"level {level.number}   tick {level.tick_ms:5,} ms   │{cells}│   {held}")
    return "\n```text\n" + "\n".join(lines) + "\n```\n\n"


#: Page and name of each part → the function that writes it.
PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("settings.md", "settings"): settings_table,
    ("checks.md", "system checks"): system_checks,
    ("checks.md", "doctor"): doctor_checks,
    ("wire-format.md", "envelope"): envelope_fields,
    ("architecture.md", "drawing"): wheel_drawn,
}


def rooms() -> str:
    """Return the rooms of the packages, the highest floor first, each with the first line of its docstring."""

    def rows() -> Iterator[tuple[str, ...]]:
        for room, floor in sorted(FLOOR.items(), key=lambda one: (-one[1], one[0])):
            folder = ROOT / ("" if room == "django_wheel" else "celery_wheel") / room
            file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
            said = str(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))).split("\n")[0]
            yield str(floor), f"`{room}`", said.replace("``", "`")

    return table("floor | room | what is in it", rows())


def alert_text(rule: dict[str, Any]) -> str:
    severity, notes = rule["labels"]["severity"], rule["annotations"]
    return f"`{rule['alert']}`, {severity}: {literals(notes['description'])}"


#: Anchor of its section → each alert.
ALERTS: dict[str, dict[str, Any]] = {
    rule["annotations"]["runbook_url"].partition("#")[2]: rule
    for rule in yaml.safe_load((ROOT / "example_project/deploy/prometheus/alerts.yaml").read_text())["groups"][0][
        "rules"
    ]
}
#: Jobs of the pipeline that another page than pipeline-jobs.md describes.
PAGES_OF_JOBS = {"schedule": "schedule-job.md", "tail": "pipeline.md"}
#: The parts that are long, and read on the site alone: docs/conf.py puts them in the place of ``<!-- tables -->``.
OF_THE_SITE: dict[tuple[str, str], Callable[[], str]] = {
    ("tasks.md", "objects"): objects,
    ("metrics.md", "metrics"): metrics_table,
    ("cli.md", "commands"): command_sections,
    ("architecture.md", "rooms"): rooms,
    ("schema.md", "tables"): tables,
} | {(PAGES_OF_JOBS.get(name, "pipeline-jobs.md"), f"options of {name}"): partial(job_options, name) for name in JOBS}
OF_THE_SITE |= {("alerts.md", anchor): partial(alert_text, rule) for anchor, rule in ALERTS.items()}


def part(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}: begin -->\n).*(?=<!-- {name}: end -->)", re.DOTALL)


def generated_page(name: str) -> str:
    """Return the text of a page with its parts as the code writes them now."""
    text = page(name)
    for (of_page, part_name), write in PARTS.items():
        if of_page == name:
            text = part(part_name).sub(lambda _, write=write: write(), text)  # type: ignore[misc]
    return text


def site_page(name: str, text: str) -> str:
    """Return the text of a page with the parts that the site alone has."""
    for (of_page, part_name), write in OF_THE_SITE.items():
        if of_page == name:
            text = text.replace(f"<!-- {part_name} -->", write())
    return text


if __name__ == "__main__":
    for name in {name for name, _ in PARTS}:
        (DOCS / name).write_text(generated_page(name), encoding="utf-8")
