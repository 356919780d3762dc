"""An encrypted store in the admin: a process without its key shows lists, and says which key the other pages need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_wheel.store import open_store
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.keyring import EncryptionKeys
from tests.admin.conftest import ADMIN, Configure, MakeClient, shown, tallied, text_of
from tests.admin.test_payload import BODY, HEADERS, a_schedule
from tests.kit.holder import NOW, Holder

KEY, OTHER = "a secret of thirty-two characters", "another secret of 32 characters."

#: Texts of the messages and of the schedule.
TEXTS = ("positional", "acme", "hunter2")


@pytest.fixture
def encrypted(tmp_path: Path, conf: Configure) -> Iterator[SqlStore]:
    url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    conf(wheel_store=url)
    store = open_store(url, shards=2, keys=[KEY])
    yield store
    store.close()


@pytest.mark.parametrize("secrets", [(), (OTHER,)], ids=["no key", "another key"])
def test_without_the_key_lists_are_shown_and_a_page_with_more_names_it(
    secrets: tuple[str, ...], encrypted: SqlStore, conf: Configure, client_of: MakeClient
) -> None:
    conf(wheel_encryption_keys=secrets)
    holder = Holder(encrypted)
    [row] = tallied(holder, NOW, task_id="known", body=BODY.encode(), headers=HEADERS)
    a_schedule(holder)
    client = client_of("superuser")
    for page in ("wheel/", "pending/", "pending/?q=known", "history/", "rejected/", "schedule/"):
        text = shown(client, f"{ADMIN}/{page}")
        assert not any(one in text for one in TEXTS), page
    key = EncryptionKeys([KEY]).ids[0]
    page_of = "?name=report"
    for page in (
        f"pending/{row.id}/",
        f"pending/{row.id}/body/",
        f"schedule/one/{page_of}",
        f"schedule/edit/{page_of}",
    ):
        response = client.get(f"{ADMIN}/{page}", follow=True)  # without its schedule, the form leads to the list
        text = text_of(response)
        assert (response.status_code, bool(response.redirect_chain)) in ((503, False), (200, True)), page
        assert f"a key with the id {key} is needed" in text, page
        assert not any(one in text for one in (*TEXTS, KEY, OTHER)), page


def test_with_the_key_only_the_permission_shows_arguments(
    encrypted: SqlStore, conf: Configure, client_of: MakeClient
) -> None:
    conf(wheel_encryption_keys=[KEY])
    holder = Holder(encrypted)
    [row] = tallied(holder, NOW, task_id="known", body=BODY.encode(), headers=HEADERS)
    a_schedule(holder)
    pages = ("pending/", f"pending/{row.id}/", "schedule/", "schedule/one/?name=report")
    for kind, sees in (("planner", False), ("viewer", True)):
        client = client_of(kind)
        text = "".join(shown(client, f"{ADMIN}/{page}") for page in pages)
        assert all((one in text) is sees for one in ("positional", "acme")), kind
