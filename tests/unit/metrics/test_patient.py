"""A scrape waits for a server that hangs for a while, and asks it once."""

from __future__ import annotations

import threading

import pytest

from celery_wheel.errors import StoreError
from celery_wheel.metrics import samples
from celery_wheel.metrics.samples import NotAnswered, PatientCall
from tests.kit.patience import patience


def test_a_call_that_hangs_is_made_once_and_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ANSWER_S", 0.01)
    release, calls = threading.Event(), []

    def hang() -> str:
        calls.append(1)
        release.wait()
        return "answer"

    call = PatientCall("the store", hang)
    for _ in range(3):
        call.begin()
        with pytest.raises(NotAnswered, match="the store has not answered"):
            call.result()
    monkeypatch.setattr(samples, "ANSWER_S", patience())
    release.set()
    assert call.result() == "answer"
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "told"), [(StoreError("gone"), NotAnswered("the store does not answer: gone")), (KeyError("x"),) * 2]
)
def test_an_error_of_the_server_is_told_and_a_defect_is_raised(error: Exception, told: Exception) -> None:
    def fail() -> None:
        raise error

    call = PatientCall("the store", fail)
    call.begin()
    with pytest.raises(type(told)) as raised:
        call.result()
    assert str(raised.value) == str(told)
