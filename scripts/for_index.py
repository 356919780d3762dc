"""Prepare a checkout for the package index: ``python scripts/for_index.py https://host/owner/name v0.1.0``.

The index shows README.md on a page of its own, where a relative link leads nowhere, and its metadata names the
repository. Both files are changed where they are: the release makes them in a checkout of its own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
#: The text of a link or of a picture, and a target in the repository.
LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?://|#|mailto:)([^)]+)\)")


def main(repository: str, tag: str) -> None:
    [version] = VERSION.findall(Path("celery_wheel/values/__init__.py").read_text("utf-8"))
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the version is {version}; tag v{version}, or change the version")

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found[1].startswith("!") else "blob"
        return f"{found[1]}({repository}/{kind}/{tag}/{found[2]})"

    readme, project = Path("README.md"), Path("pyproject.toml")
    readme.write_text(LINK.sub(absolute, readme.read_text("utf-8")), "utf-8")
    urls = {
        "Source": repository,
        "Documentation": f"{repository}/tree/{tag}/docs",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    table = "[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    project.write_text(project.read_text("utf-8").replace("[project.scripts]", f"{table}\n[project.scripts]"), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
