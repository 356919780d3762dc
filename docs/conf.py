"""The settings of Sphinx: ``make docs`` builds the site into docs/_build, and any warning is an error."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.ext.autodoc.mock import mock

from celery_wheel.values import __version__

sys.path.insert(0, os.fspath(Path(__file__).parent.parent))  # beside the package, the site needs the tests' own kit
from tests.kit.generated import site_page

project = "celery-wheel"
author = "the celery-wheel authors"
project_copyright = "2026, the celery-wheel authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"celery-wheel {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

#: The address of the repository, which a release knows: links to files that are no pages lead there. Without it the
#: site has copies of the files, for readers who have the built wheel and no clone.
REPOSITORY = os.environ.get("REPOSITORY", "")
#: Files beside this folder that a page of the site includes.
ROOT = Path(__file__).parent.parent
INCLUDED = {"CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
_FILE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(#[^)]+)?\)")


def link_files(app: Any, page: str, source: list[str]) -> None:
    def link(found: re.Match[str]) -> str:
        text, file, anchor = found.groups("")
        if file in INCLUDED:
            return f"[{text}]({INCLUDED[file]}{anchor})"
        if REPOSITORY:
            return f"[{text}]({REPOSITORY}/blob/v{release}/{file})"
        return f"{{download}}`{text.strip('`')} <../{file}>`" if (ROOT / file).is_file() else text

    with mock(["pyspark", "pyarrow", "pandas", "matplotlib"]):  # the jobs' options need no Spark
        text = site_page(f"{page}.md", source[0])
    source[0] = _FILE.sub(link, text)


def setup(app: Any) -> None:
    app.add_lexer("csv", TextLexer)  # GitHub colours it, and Pygments does not know it
    app.connect("source-read", link_files)
