"""A project's own tests of Celery tasks, with the wheel and without it.

Both runs have the project's own settings for tests; those of the first also have the two lines.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from tests.adopt.site import PREPARE_S, Site
from tests.kit.processes import Process

#: The settings of both runs.
MODULES = {"plain": "", "wheel": "adopted_tests"}


def folder_of_tests(site: Site, name: str, sdists: Path) -> Path:
    """Return the folder in which the project's tests are: its package, or its sdist, unpacked."""
    if site.project.packaged:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent
    (sdist,) = sdists.glob(f"{name}-*.tar.gz")
    shutil.unpack_archive(sdist, site.folder / "sdist")
    (unpacked,) = (site.folder / "sdist").iterdir()
    if (unpacked / "src" / name).exists():  # the installed package is the one under test
        (unpacked / "src" / name).rename(unpacked / "src" / f"{name}_of_the_sdist")
    return unpacked


def outcomes(report: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - our own file
        tags = [one.tag for one in case if one.tag in {"failure", "error", "skipped"}]
        found[f"{case.get('classname')}::{case.get('name')}"] = tags[0] if tags else "passed"
    return found


def run(site: Site, folder: Path, kind: str) -> dict[str, str]:
    report = site.folder / f"{kind}.xml"
    settings = MODULES[kind] or site.project.suite
    start = folder / "src" if (folder / "src").exists() else site.root
    arguments = ["-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:sugar", "-W", "default"]
    process = Process(
        [sys.executable, *arguments, f"--ds={settings}", f"--junitxml={report}", "--rootdir", str(start)]
        + [str(folder / path) for path in site.project.tests],
        site.folder / f"tests-{kind}.log",
        folder=start,
        environment=site.environment(settings),
    )
    process.end(PREPARE_S)
    assert report.exists(), process.said()[-3000:]
    return outcomes(report)


def compare(site: Site, folder: Path) -> dict[str, object]:
    module = site.root / f"{MODULES['wheel']}.py"
    module.write_text(f"from {site.project.suite} import *\n\n{site.project.lines}", encoding="utf-8")
    with_wheel, without = run(site, folder, "wheel"), run(site, folder, "plain")
    assert without, "the project's tests were not found"
    return {
        "with": dict(Counter(with_wheel.values())),
        "without": dict(Counter(without.values())),
        "differ": sorted(one for one in with_wheel | without if with_wheel.get(one) != without.get(one)),
    }
