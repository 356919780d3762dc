"""``app.wheel.limits`` on the real engine and store, in virtual time: set, read and cleared; what is refused."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from celery_wheel.conf import Conf
from celery_wheel.errors import ArgumentError
from celery_wheel.requests.limits import OwnLimits
from celery_wheel.testing import VirtualWheel


@pytest.fixture
def limits(wheel: VirtualWheel, wheel_app: Any) -> OwnLimits:
    wheel_app.conf.wheel_limits = {"tenant": {"concurrency": 5, "rate": "100/m"}}
    found: OwnLimits = wheel_app.wheel.limits
    return found


def test_a_group_has_its_own_limits_then_those_of_its_class_then_the_defaults(limits: OwnLimits) -> None:
    limits.set("tenant:42", concurrency=50, max_runtime=timedelta(hours=2), actor="anna", reason="import")
    found = limits.get("tenant:42")
    assert (found.concurrency, found.rate, found.weight, found.max_runtime) == (50, "100/m", 1, 7_200)
    assert found.sources == {"concurrency": "own", "rate": "class", "weight": "default", "max_runtime": "own"}
    assert found.actor == "anna"
    assert found.at is not None
    other = limits.get("other")
    assert (other.concurrency, other.rate, other.weight, other.max_runtime, other.at) == (None, None, 1, 3_600, None)
    assert set(other.sources.values()) == {"default"}


def test_a_set_replaces_all_and_a_clear_ends_them(limits: OwnLimits) -> None:
    limits.set("b", concurrency=50)
    limits.set("b", rate="3/h", weight=2)
    limits.set("a", weight=7)
    assert [(one.group, one.concurrency, one.rate, one.weight) for one in limits.list()] == [
        ("a", None, None, 7),
        ("b", None, "3/h", 2),
    ]
    assert limits.clear("a")
    assert not limits.clear("a")
    assert [one.group for one in limits.list()] == ["b"]


def test_a_list_parses_the_setting_once(limits: OwnLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    for group in "abc":
        limits.set(group, weight=2)
    reads: list[Any] = []
    monkeypatch.setattr(Conf, "limits", property(lambda conf: reads.append(conf) or {}))  # type: ignore[func-returns-value]
    assert [one.group for one in limits.list()] == ["a", "b", "c"]
    assert len(reads) == 1


def test_a_change_is_in_the_audit_log(limits: OwnLimits, wheel_app: Any) -> None:
    limits.set("a", rate="5/s", actor="anna", reason="storm")
    limits.clear("a", actor="ben")
    cleared, was_set = wheel_app.wheel.audit().items
    assert (cleared.action, cleared.actor, cleared.results, cleared.details) == (
        "clear_limits",
        "ben",
        {"a": "done"},
        {},
    )
    assert (was_set.action, was_set.reason) == ("set_limits", "storm")
    assert was_set.details == {"limits": {"rate_count": 5, "rate_per_ms": 1_000}}


def test_each_method_has_an_async_twin(limits: OwnLimits) -> None:
    assert [limits.aset.__name__, limits.aget.__name__, limits.alist.__name__] == ["aset", "aget", "alist"]
    assert asyncio.run(limits.aget("a")) == limits.get("a")


@pytest.mark.parametrize(
    ("values", "error", "why"),
    [
        ({}, TypeError, "set must have one of concurrency, rate, weight, max_runtime, got none"),
        ({"concurrency": 0}, ArgumentError, "concurrency must be a whole number from 1 to 1,000,000, got 0"),
        ({"rate": "often"}, ArgumentError, 'rate must be a text like "100/m"'),
        ({"weight": True}, ArgumentError, "weight must be a whole number"),
        ({"max_runtime": float("nan")}, ArgumentError, "max_runtime must be from 1 to"),
        ({"weight": 2, "concurency": 5}, TypeError, "set got an unknown option 'concurency'; nothing was changed"),
        ({"weight": 2, "transactional": True}, TypeError, "limit must be without the option transactional"),
    ],
)
def test_wrong_limits_are_refused(limits: OwnLimits, values: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        limits.set("a", **values)
    assert limits.list() == []


@pytest.mark.parametrize("group", ["", "a\0b", "a\nb", "a" * 600])
def test_a_group_that_no_store_can_hold_is_refused(limits: OwnLimits, group: str) -> None:
    for change in (limits.get, limits.clear, lambda name: limits.set(name, weight=2)):
        with pytest.raises(ArgumentError, match="a group must be"):
            change(group)
