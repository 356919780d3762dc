"""The German catalog of django_wheel has a text for each text of the source, and its compiled form is not older.

Neither test needs GNU gettext: the texts are read from the syntax trees of the modules and from the templates as
Django itself turns them into Python.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polib
import pytest
from django.utils.translation.template import templatize

from celery_wheel.recurring import words
from celery_wheel.store.model import HOUR_MS, ORIGIN, Gate
from django_wheel.recurrence_texts import RECURRENCE_TEXTS
from tests.admin.conftest import ADMIN, MakeClient, renew, tallied, text_of
from tests.admin.test_schedules import definition
from tests.admin.test_translations import Texts, content
from tests.kit.holder import NOW, Holder, place
from tests.kit.schedules import create

PACKAGE = Path(__file__).parents[2] / "django_wheel"
CATALOG = PACKAGE / "locale/de/LC_MESSAGES/django.po"

#: A text's context (none: ""), its singular and its plural (none: "").
Text = tuple[str, str, str]
#: Name of a function of gettext, without "_lazy" → the places of context, singular and plural in its arguments.
FUNCTIONS: dict[str, tuple[int | None, int, int | None]] = {
    "_": (None, 0, None),
    "gettext": (None, 0, None),
    "gettext_noop": (None, 0, None),
    "ngettext": (None, 0, 1),
    "pgettext": (0, 1, None),
    "npgettext": (0, 1, 2),
}
_STRING = r"u?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
_CALL = re.compile(rf"\b([a-z]*gettext|_)\(\s*({_STRING}(?:\s*,\s*{_STRING})*)")


def text(function: str, arguments: list[str]) -> Text:
    places = FUNCTIONS[function]
    context, singular, plural = ("" if place is None else arguments[place] for place in places)
    return context, singular, plural


def texts_of_module(path: Path) -> Iterator[Text]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation":
            aliases = {one.asname for one in node.names} - {None, "_"}
            assert not aliases, f"makemessages does not know {aliases} in {path.name}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = node.func.id.removesuffix("_lazy")
            if function in FUNCTIONS:
                strings = [one.value for one in node.args if isinstance(one, ast.Constant)]
                yield text(function, [one for one in strings if isinstance(one, str)])


def texts_of_template(path: Path) -> Iterator[Text]:
    for function, arguments in _CALL.findall(templatize(path.read_text(encoding="utf-8"))):
        yield text(function, [ast.literal_eval(one) for one in re.findall(_STRING, arguments)])


def texts() -> dict[Text, Path]:
    found = {one: path for path in PACKAGE.rglob("*.py") for one in texts_of_module(path)}
    return found | {one: path for path in PACKAGE.rglob("*.html") for one in texts_of_template(path)}


@pytest.fixture(scope="module")
def catalog() -> dict[Text, polib.POEntry]:
    return {(one.msgctxt or "", one.msgid, one.msgid_plural): one for one in polib.pofile(str(CATALOG))}


def of_msgid(one: polib.POEntry) -> list[str]:
    return [one.msgstr_plural[number] for number in sorted(one.msgstr_plural)] if one.msgid_plural else [one.msgstr]


def test_each_text_of_the_source_has_a_translation_and_no_other_is_left(catalog: dict[Text, polib.POEntry]) -> None:
    needed = texts()
    assert len(needed) > 600
    missing = {one: path.name for one, path in needed.items() if one not in catalog}
    assert missing == {}, "run django-admin makemessages and compilemessages: CONTRIBUTING.md"
    assert [one for one in catalog if one not in needed] == [], "the catalog has texts that the source has not"


def test_each_translation_is_whole(catalog: dict[Text, polib.POEntry]) -> None:
    for key, one in catalog.items():
        assert not one.fuzzy, key
        assert len(of_msgid(one)) == (2 if one.msgid_plural else 1), key
        for translated in of_msgid(one):
            assert translated, key
            places = set(re.findall(r"%\(\w+\)s", one.msgid + one.msgid_plural))
            assert set(re.findall(r"%\(\w+\)s", translated)) <= places, key
            assert re.findall(r"</?\w+", translated) == re.findall(r"</?\w+", one.msgid), key
        # The last form is for many: it names everything that the English one names.
        last = re.findall(r"%\(\w+\)s", one.msgid_plural or one.msgid)
        assert sorted(re.findall(r"%\(\w+\)s", of_msgid(one)[-1])) == sorted(last), key


def test_the_compiled_catalog_is_that_of_the_text() -> None:
    def content(entries: list[polib.POEntry]) -> dict[Text, list[str]]:
        return {(one.msgctxt or "", one.msgid, one.msgid_plural): of_msgid(one) for one in entries}

    compiled = polib.mofile(str(CATALOG.with_suffix(".mo")))
    assert content(compiled) == content(polib.pofile(str(CATALOG))), "run django-admin compilemessages"
    assert compiled.metadata["Plural-Forms"] == "nplurals=2; plural=(n != 1);"


def texts_of_recurrences() -> set[str]:
    """Return the texts of ``recurring.words``: all that it says by ``say``, and its tables."""
    said = {
        string.value
        for node in ast.walk(ast.parse(Path(words.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "say"
        for string in ast.walk(node.args[0])
        if isinstance(string, ast.Constant) and isinstance(string.value, str) and string.value != "_"
    }
    tables = {*words._EVENTS.values(), *words._ORDINALS.values(), *words._WEEKDAYS, *words._MONTHS}
    return said | tables | {one for both in words._EVERY.values() for one in both}


def test_the_translators_have_each_text_of_a_recurrence_and_no_other() -> None:
    assert texts_of_recurrences() == set(RECURRENCE_TEXTS)


_RULE = "DTSTART:20260105T090000\nRRULE:"
#: Spec → its words in German.
RECURRENCES = [
    ({"kind": "interval", "every_ms": 300_000}, "alle 5 min"),
    ({"kind": "crontab", "minute": "*/5"}, "alle 5 Minuten"),
    ({"kind": "crontab", "minute": "0"}, "jede Stunde"),
    ({"kind": "crontab", "minute": "30", "hour": "9", "day_of_week": "1-5"}, "um 09:30 jeweils Montag bis Freitag"),
    ({"kind": "crontab", "minute": "0", "hour": "3", "day_of_month": "1,15"}, "um 03:00 an Tag 1, 15 des Monats"),
    ({"kind": "crontab", "minute": "0", "hour": "3", "month_of_year": "3"}, "um 03:00 im März"),
    ({"kind": "rrule", "text": f"{_RULE}FREQ=MONTHLY;BYDAY=-1FR"}, "jeden Monat am letzten Freitag um 09:00"),
    ({"kind": "solar", "event": "sunset", "latitude": 48.1, "longitude": 11.6}, "Sonnenuntergang bei 48.1, 11.6"),
]


@pytest.mark.usefixtures("still")
def test_no_recurrence_in_german_has_an_english_word(
    client_of: MakeClient, holder: Holder, settings: Any, catalog: dict[Text, polib.POEntry]
) -> None:
    settings.LANGUAGE_CODE = "de"
    for number, (spec, _german) in enumerate(RECURRENCES):
        create(holder, f"plan-{number}", definition=definition(recurrence={"spec": spec}))
    page = text_of(client_of("operator").get(f"{ADMIN}/schedule/"))
    assert [german for _, german in RECURRENCES if german not in page] == []
    parser = Texts()
    parser.feed(content(page))
    assert words_of(parser.text, *parser.values) & english_of(catalog) == set()


def english_of(catalog: dict[Text, polib.POEntry]) -> set[str]:
    """Return the words that only the English texts have."""
    english = words_of(*(one.msgid + " " + one.msgid_plural for one in catalog.values()))
    return english - words_of(*(word for one in catalog.values() for word in of_msgid(one)))


def words_of(*texts: str) -> set[str]:
    return {word for one in texts for word in re.findall(r"(?<![\w.%(-])[^\W\d_]{2,}(?![\w.-])", one)}


@pytest.mark.parametrize("by", ["header", "setting"])
@pytest.mark.usefixtures("still")
def test_pages_in_german_have_no_english_left(
    client_of: MakeClient, holder: Holder, settings: Any, catalog: dict[Text, polib.POEntry], by: str
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    settings.LANGUAGE_CODE = "de" if by == "setting" else "en"
    client = client_of("operator")
    tallied(holder, NOW + 340, NOW + 27 * HOUR_MS)
    (later,) = tallied(holder, NOW + 3 * HOUR_MS)
    (late,) = tallied(holder, NOW - 60_000)
    holder.settle(ORIGIN, place(late), at_ms=NOW - 40_000)
    holder.apply(gates=[Gate("queue", "mail", "paused", 0, "", "root", NOW - 90_000)])
    renew(holder)
    english = english_of(catalog)
    for address, phrases in {
        "wheel/": ("Pausiert: Queue mail", "seit 08:58:30 (vor 1 min), durch root", "1.234 versandt", "im Speicher"),
        "pending/": ("Fällig ab", "Stornieren", "Jetzt ausführen"),
        "history/": ("Versandt", "Verspätung"),
        f"pending/{later.id}/": ("Vom Absender gesendet", "Angenommen: vom Rad gespeichert", "in 3 h", "Nachricht"),
    }.items():
        headers = {"accept-language": "de-AT,de;q=0.9"} if by == "header" else {}
        response = client.get(f"{ADMIN}/{address}", headers=headers)
        assert response.status_code == 200
        page = text_of(response)
        assert '<html lang="de"' in page
        assert 'id="content-main" lang="de" dir="ltr"' in page
        assert [one for one in phrases if one not in page] == [], address
        parser = Texts()
        parser.feed(content(page))
        assert words_of(parser.text, *parser.values) & english == set(), address
