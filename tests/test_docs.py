"""The manual (README.md and docs/) agrees with the code: settings, commands, links, file names and rooms."""

import ast
import functools
import json
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from celery_wheel.broker.envelope import check
from celery_wheel.values import __version__
from tests.kit.generated import OF_THE_SITE, PARTS, generated_page, part, site_page
from tests.kit.manual import DOCS, FENCED, PAGES, README, ROOT, anchors, code, commands, links, page, wheel_commands
from tests.kit.rooms import FLOOR
from tests.simulation.test_planted import PLANTED
from tests.year import judges

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
ALL_COMMANDS = {command for text in PAGES.values() for command in commands(text)}
BY_PAGE = pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in PAGES])


@pytest.mark.parametrize("name", sorted({name for name, _ in PARTS}))
def test_the_generated_parts_of_a_page_are_those_of_the_code(name: str) -> None:
    assert page(name) == generated_page(name), f"python -m tests.kit.generated writes them into docs/{name}"
    assert all(part(part_name).search(page(name)) for of_page, part_name in PARTS if of_page == name)


def test_the_site_has_the_fields_of_objects_the_metrics_the_tables_of_the_store_and_each_other_part() -> None:
    from celery_wheel.metrics.samples import METRICS
    from celery_wheel.store.sql.schema import metadata

    tasks, metrics, schema = (site_page(f"{name}.md", page(f"{name}.md")) for name in ("tasks", "metrics", "schema"))
    assert re.search(r"^\| items of `groups` \| .*`in_flight`", tasks, re.MULTILINE)
    assert all(f"`{metric.full_name}" in metrics for metric in METRICS.values())
    assert set(re.findall(r"^## (wheel_\w+)$", schema, re.MULTILINE)) == metadata.tables.keys()
    places = {
        (path.name, part) for path, text in PAGES.items() for part in re.findall(r"^<!-- (.*) -->$", text, re.MULTILINE)
    }
    assert {(name, part) for name, part in places if not part.endswith((": begin", ": end"))} == OF_THE_SITE.keys()


def test_every_system_check_is_on_the_page_of_checks() -> None:
    source = (ROOT / "django_wheel/checks.py").read_text(encoding="utf-8")
    made = set(re.findall(r'"(?:django_wheel\.)?([EIW]\d{3})"', source))
    assert set(re.findall(r"django_wheel\.([EIW]\d{3})", page("checks.md"))) == made


def test_every_setting_in_the_text_exists() -> None:
    from celery_wheel.broker.envelope import NATIVE, REDELIVERED
    from celery_wheel.conf import settings
    from celery_wheel.store.schedule_model import AFTER, OCCURRENCE, SLOT
    from celery_wheel.store.sql.schema import metadata

    known = {REDELIVERED, NATIVE, OCCURRENCE, AFTER, SLOT, *(name for name, _, _ in settings()), *metadata.tables}
    known |= {"wheel_", "wheel_app", "wheel_jobs"}  # the prefix, an option of pytest, a file of the reader's own
    known |= {"wheel_seeds"}  # a variable of the simulation's tests
    known |= {"wheel_of", "wheel_format"}  # a function and a module of the packages
    known |= {"wheel_job_asset", "wheel_archive"}  # the function for Dagster, and an asset of it
    text = "\n".join(part("settings").sub("", text) for text in PAGES.values())
    named = {name.lower() for name in re.findall(r"\b(?:CELERY_)?(WHEEL_[A-Z_]+|wheel_[a-z_]+)", text)}
    assert named - management_commands() <= known


def test_each_attack_has_a_test_that_exists() -> None:
    attacks = (ROOT / "SECURITY.md").read_text().partition("## Attacks")[2].split("\n\n")[2].splitlines()[2:]
    assert len(attacks) > 9
    for attack in attacks:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", attack)
        assert named, attack
        for path, test in named:
            assert f"def {test}(" in (ROOT / path).read_text(), test


def management_commands() -> set[str]:
    return {path.stem for path in (ROOT / "django_wheel/management/commands").glob("wheel_*.py")}


def test_every_command_of_django_exists() -> None:
    named = {found[1] for command in ALL_COMMANDS for found in re.finditer(r"manage\.py (wheel_\w+)", command)}
    assert named == management_commands()


def test_every_make_target_exists() -> None:
    named = {found[1] for command in ALL_COMMANDS for found in re.finditer(r"\bmake ([a-z-]+)", command)}
    assert {"demo", "test", "soak"} <= named <= TARGETS


def test_every_variable_of_make_demo_is_used() -> None:
    named = {found[1] for command in ALL_COMMANDS for found in re.finditer(r"\bmake demo ([A-Z]+)=", command)}
    assert named
    assert all(f"$({name})" in MAKEFILE for name in named | {"DATE", "SPEED", "PORT"})


def test_every_command_of_the_wheel_exists_with_its_options() -> None:
    from celery_wheel.cli import wheel

    every = wheel.commands | wheel_commands()
    pattern = re.compile(r"\b(?:celery|proj) wheel ((?:schedules )?[a-z-]+)((?: --[a-z-]+)*)")
    named = [found.groups() for command in ALL_COMMANDS for found in pattern.finditer(command)]
    assert named
    for name, options in named:
        known = {option for parameter in every[name].params for option in parameter.opts}
        assert set(options.split()) <= known, name


def test_every_job_of_the_pipeline_exists_with_its_options() -> None:
    from celery_wheel.pipeline.cli import make_command
    from celery_wheel.pipeline.jobs import JOBS

    blocks = [block for text in PAGES.values() for language in ("console", "sh") for block in code(text, language)]
    named = re.findall(r"(?:celery-wheel-pipeline|wheel_jobs\.py) (\w+)(.*)", "\n".join(blocks))
    assert {"schedule", "archive", "tail"} <= {job for job, _ in named} <= set(JOBS)
    for job, line in named:
        known = {option for parameter in make_command(job).params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", line)) <= known, job


def test_every_option_of_replay_flights_exists() -> None:
    source = (ROOT / "example_project/flights/management/commands/replay_flights.py").read_text(encoding="utf-8")
    known = set(re.findall(r'add_argument\(\s*"(--[a-z]+)"', source))
    section = page("install.md").split("## The example project")[1].split("\n## ")[0]
    named = set(re.findall(r"--[a-z-]+", section))
    assert named
    assert named - {"--no-wait"} <= known


def test_every_extra_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [extras for text in PAGES.values() for extras in re.findall(r"celery-wheel\[([\w,-]+)\]", text)]
    named = {extra for extras in found for extra in extras.split(",")}
    assert {"redis", "cli"} <= named <= set(project["optional-dependencies"])


@BY_PAGE
def test_every_python_example_parses_and_the_names_that_it_imports_exist(path: Path) -> None:
    for block in code(PAGES[path], "python"):
        for node in ast.walk(ast.parse(block)):
            # Examples of django_wheel need a Django project: tests/admin/test_installing.py; those of the
            # orchestrators need Airflow and Dagster: tests/orchestrators
            module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
            is_elsewhere = module.startswith("celery_wheel.pipeline.orchestrators.")
            if module.split(".")[0] in ("celery", "celery_wheel") and not is_elsewhere:
                assert all(hasattr(import_module(str(node.module)), alias.name) for alias in node.names)


@BY_PAGE
def test_every_dotted_name_of_the_package_exists(path: Path) -> None:
    for name in set(re.findall(r"`(celery_wheel(?:\.\w+)+)", PAGES[path])):
        assert is_importable(name), name


def is_importable(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError:
        owner, _, attribute = name.rpartition(".")
        return bool(owner) and is_importable(owner) and hasattr(import_module(owner), attribute)
    return True


def test_the_readme_has_at_most_900_words() -> None:
    assert len(PAGES[README].split()) <= 900


def test_the_readme_has_one_picture_the_two_lines_and_a_screenshot() -> None:
    text = PAGES[README]
    assert text.count("┌") >= 3
    assert "from celery_wheel import Celery" in "".join(code(text, "python"))
    assert 'beat_scheduler = "wheel"' in "".join(code(text, "python"))
    assert "docs/images/wheel-page.png" in links(text)


def test_the_readme_links_every_page() -> None:
    linked = {target.partition("#")[0] for target in links(PAGES[README])}
    assert {f"docs/{path.name}" for path in PAGES if path != README} <= linked


def test_the_search_for_countdown_finds_the_page_of_delayed_tasks_first() -> None:
    """A word in a heading counts three times as much as one in the text."""
    headings = {path.name: " ".join(anchors(text)) for path, text in PAGES.items()}
    assert [name for name, heading in headings.items() if "countdown" in heading] == ["tasks.md"]


@BY_PAGE
def test_every_table_is_in_one_piece(path: Path) -> None:
    """Neither an empty line nor a missing break tears it; Sphinx shows the rest as text, without a warning."""
    text = FENCED.sub("", PAGES[path])
    tables = re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE)
    assert [table for table in tables if not re.match(r".*\n *\|(?:---\|)+\n", table)] == []


def test_the_pictures_are_small() -> None:
    assert all(image.stat().st_size <= 200_000 for image in (DOCS / "images").iterdir())


@BY_PAGE
def test_every_relative_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for link in links(PAGES[path]):
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), link
        assert not anchor or anchor in anchors_on_the_site(file), link


@functools.cache
def anchors_on_the_site(file: Path) -> set[str]:
    return anchors(site_page(file.name, file.read_text(encoding="utf-8")))


@BY_PAGE
def test_a_link_has_the_title_of_a_page_and_not_the_name_of_its_file(path: Path) -> None:
    assert re.findall(r"\[[^\]]*\.md\]\([^)]*\)", PAGES[path]) == []


def test_every_file_of_the_deployment_can_be_read_on_the_site() -> None:
    shown = set(re.findall(r"```\{literalinclude\} \.\./(\S+)", page("deployment.md")))
    linked = {
        link.removeprefix("../") for name in ("deployment.md", "alerts.md", "roles.md") for link in links(page(name))
    }
    folder = ROOT / "example_project/deploy"
    files = {path.relative_to(ROOT).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files <= linked
    assert {name for name in files if Path(name).parent == folder.relative_to(ROOT)} == shown


def test_every_page_links_to_another_page_and_is_linked_from_one() -> None:
    pages = set(PAGES) - {README}
    linked = {path: {(path.parent / link.partition("#")[0]).resolve() for link in links(PAGES[path])} for path in pages}
    assert [path.name for path in pages if not linked[path] & pages - {path}] == []
    assert [path.name for path in pages if not any(path in linked[other] for other in pages - {path})] == []


@BY_PAGE
def test_every_file_of_the_repository_that_is_named_exists(path: Path) -> None:
    named = re.findall(r"`((?:celery_wheel|django_wheel|example_project|tests|docs)/[\w./-]*)`", PAGES[path])
    assert [name for name in named if name != "docs/_build" and not (ROOT / name).exists()] == []


@BY_PAGE
def test_every_function_that_is_named_with_its_file_is_there(path: Path) -> None:
    for name, file in re.findall(r"`(\w+)`\s+in\s+`([\w/]+\.py)`", PAGES[path]):
        assert re.search(rf"^\s*(?:def|class) {name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_the_life_of_a_message_has_twelve_steps_each_with_a_file() -> None:
    section = page("architecture.md").split("## The life of a message")[1].split("\n## ")[0]
    steps = re.split(r"^(\d+)\. \*\*", section, flags=re.MULTILINE)[1:]
    assert steps[::2] == [str(number) for number in range(1, 13)]
    assert all("`celery_wheel/" in step for step in steps[1::2])


def test_the_table_of_rooms_on_the_site_has_every_room() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)` \| \S", site_page("architecture.md", page("architecture.md")), re.MULTILINE
    )
    assert {room: int(floor) for floor, room in rows} == FLOOR


def test_the_example_of_the_wire_format_is_an_envelope() -> None:
    [example] = code(page("wire-format.md"), "json")
    assert check(json.loads(example)).task == "shop.remind"


def test_the_number_of_planted_bugs_is_that_of_the_simulation() -> None:
    assert max(seed for _, seed in PLANTED) < 5_000
    assert f"| {len(PLANTED)} planted bugs, each below seed 5,000 |" in page("evidence.md")


def test_the_recovery_times_are_those_of_the_judges_of_the_year() -> None:
    text = (ROOT / "docs/failures.md").read_text()
    table = text.partition("## Recovery times")[2].partition("##")[0]
    times_ms = [int(seconds) * 1_000 for seconds in re.findall(r"^\| (\d+) seconds \|", table, re.MULTILINE)]
    assert times_ms == [judges.RECOVERY_MS, judges.REPORTED_MS, judges.FOLLOWED_MS, judges.TOLD_MS]
    sooner = (judges.SHORT_MS, judges.REPORTED_SOON_MS, judges.EDIT_MS)
    found = re.findall(r"than (\d+) seconds: within (\d+)|trouble: within (\d+)", table)
    assert found == [(*(str(one // 1_000) for one in sooner[:2]), ""), ("", "", str(sooner[2] // 1_000))]
    assert f"at most {judges.LATE_MS / 1_000:g} seconds late" in table


def test_every_term_of_the_glossary_has_a_meaning_and_a_source() -> None:
    rows = re.findall(r"^\| (.*) \|$", page("glossary.md"), re.MULTILINE)
    cells = [row.split(" | ") for row in rows if not row.startswith("term")]
    assert len(cells) > 40
    assert all(len(row) == 3 and all(row) for row in cells)


def test_the_changelog_begins_with_what_is_unreleased_and_then_has_this_version() -> None:
    text = (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, version, *_ = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert unreleased == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d", version)


def test_every_pinned_version_is_a_version_and_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pin = r'[\w.-]+==[\w.]+(; python_version (<|>=) "3\.\d+")?'
    assert all(re.fullmatch(pin, line) for line in lines if not line.startswith("#"))
