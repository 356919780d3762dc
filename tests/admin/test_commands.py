"""``manage.py wheel_status`` prints the same as ``celery wheel status``."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from freezegun import freeze_time

from tests.admin.test_pages import MOMENT, snapshot
from tests.kit.holder import LEASE, NOW, Holder
from tests.kit.site import celery_app


def said(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("wheel_status", *arguments, stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


@freeze_time(MOMENT)
def test_status_prints_the_same_as_celery_wheel_status(holder: Holder) -> None:
    other = Holder(holder.store, 1)
    for one in (holder, other):
        one.store.renew(one.shard, one.epoch, NOW, LEASE, snapshot())
    code, text = said()
    assert code == 0
    assert "host-a" in text
    assert "512 ms" in text
    code, text = said("--json")
    assert (code, len(json.loads(text)["shards"])) == (0, 2)
    other.store.release(1, other.epoch)
    assert said("--json")[0] == 3


def test_status_without_a_store_is_an_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(celery_app.conf, "wheel_store", f"sqlite:///{tmp_path}/none.sqlite3")
    with pytest.raises(CommandError, match="there is no store at"):
        said()
    out = io.StringIO()
    call_command("wheel_migrate_check", stdout=out)
    assert out.getvalue().startswith("no migration is missing; there is no store at")
