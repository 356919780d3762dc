"""The README is short, and every command, setting and file that it names exists; see test_docs.py for all pages."""

from __future__ import annotations

from tests.kit.manual import DOCS, PAGES, README, code, links


def test_it_has_at_most_900_words() -> None:
    assert len(PAGES[README].split()) <= 900


def test_it_has_one_picture_the_two_lines_and_a_screenshot() -> None:
    text = PAGES[README]
    assert text.count("┌") >= 3
    assert "from celery_wheel import Celery" in "".join(code(text, "python"))
    assert 'beat_scheduler = "wheel"' in "".join(code(text, "python"))
    assert "docs/images/wheel-page.png" in links(text)


def test_it_links_every_page() -> None:
    linked = {target.partition("#")[0] for target in links(PAGES[README])}
    assert {f"docs/{path.name}" for path in PAGES if path != README} <= linked


def test_its_pictures_are_small() -> None:
    assert all(image.stat().st_size <= 200_000 for image in (DOCS / "images").iterdir())
