"""``python -m tests.adopt pretix RESULTS SDISTS`` tries a project; ``python -m tests.adopt RESULTS`` prints the table.

The first runs in an environment that has the project and the wheel, and writes a result; see ``adopt`` in noxfile.py.
The table needs no package, and ends with exit code 1 unless each project passed.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

COLUMNS = (
    *("project", "Celery", "Django", "delayed task", "late", "retried task", "late"),
    *("own tests with / without", "seconds", "result"),
)


def attempt(name: str, results: Path, sdists: Path) -> None:
    import tests.adopt.site as own  # the table is printed where neither Celery nor Redis is installed

    began_s = time.monotonic()
    packages = ("celery", "django", "redis", "celery-wheel")
    result: dict[str, Any] = {"project": name, "version": version(name)} | {one: version(one) for one in packages}
    results.mkdir(parents=True, exist_ok=True)
    report = results / f"{name}.json"
    report.write_text(json.dumps({**result, "error": "did not end"}), encoding="utf-8")
    with (
        tempfile.TemporaryDirectory(prefix=f"adopt-{name}-") as folder,
        own.Site(name, Path(folder) / "site") as site,
    ):
        app = site.app()
        first, again = own.delayed(site, app), own.retried(site, app)
        own.once(site)
        assert site.errors() == [], "beat logged errors:\n" + "\n".join(site.errors())
        result |= {"delayed": asdict(first), "retried": asdict(again)}
        result["suite"] = own.compare(site, own.folder_of_tests(site, name, sdists))
        app.wheel.close()
    result["seconds"] = round(time.monotonic() - began_s)
    report.write_text(json.dumps(result, indent=1), encoding="utf-8")


def line(result: Mapping[str, Any]) -> tuple[str, ...]:
    versions = (f"{result['project']} {result['version']}", result["celery"], result["django"])
    if "error" in result:
        return (*versions, *[""] * (len(COLUMNS) - len(versions) - 1), f"FAILED: {result['error']}")
    suite = result["suite"]
    counts = " / ".join(
        ", ".join(f"{number} {outcome}" for outcome, number in sorted(suite[kind].items()))
        for kind in ("with", "without")
    )
    verdict = f"{len(suite['differ'])} tests differ: {suite['differ'][0]}" if suite["differ"] else "pass"
    tasks = [
        cell
        for kind in ("delayed", "retried")
        for cell in (result[kind]["task"].rpartition(".")[2], f"{result[kind]['late_ms']} ms")
    ]
    return (*versions, *tasks, counts, str(result["seconds"]), verdict)


def table(results: Path) -> int:
    lines = [line(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(results.glob("*.json"))]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *lines, strict=True)]
    for one in (COLUMNS, *lines):
        print("  ".join(cell.ljust(width) for cell, width in zip(one, widths, strict=True)).rstrip())
    return 0 if lines and all(one[-1] == "pass" for one in lines) else 1


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(table(Path(sys.argv[1])))
    attempt(sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve())
