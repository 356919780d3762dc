"""The page of groups lists who waits, and leads to what an operator does with a group."""

from html import unescape

import pytest
from django.test import Client

from celery_wheel.overview import FEW
from celery_wheel.store.model import PAUSED, Gate, GroupLimit
from tests.admin.conftest import ADMIN, Configure, renew, shown
from tests.contract.stores.test_groups_browsing import wait
from tests.kit.holder import NOW, Holder

GROUPS = f"{ADMIN}/group/"
NASTY = "<b>tenant</b>:1"

pytestmark = pytest.mark.usefixtures("still")


@pytest.fixture
def filled(holder: Holder) -> Holder:
    for number, (group, count) in enumerate({NASTY: 2, "tenant:2": 3, "": 1}.items()):
        wait(holder, number, group, holder.accept(*[NOW - 60_000] * count))
    holder.apply(limits=[GroupLimit("tenant:2", 5, 100, 60_000, 3, 7_200_000, "ops", NOW)])
    renew(holder)
    return holder


def rows(page: str) -> list[str]:
    table = page.split('id="wheel-groups"')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [unescape(one.split("</th>")[0].split('<th scope="row">')[1]) for one in table.split("<tr>")[1:]]


def test_groups_are_listed_by_waiting_or_by_name(viewer: Client, filled: Holder) -> None:
    page = shown(viewer, GROUPS)
    assert rows(page) == ["tenant:2", NASTY, "tasks without a group"]
    assert NASTY not in page
    assert "1 min ago" in page
    assert "at most 5 in flight, at most 100 in 1 min, weight 3, a run is over after 2 h" in page
    assert "wheel/gate/" not in page
    assert "group/limits/" not in page
    assert rows(shown(viewer, f"{GROUPS}?sort=name")) == ["tasks without a group", NASTY, "tenant:2"]


def test_groups_are_searched_by_a_part_of_their_names(viewer: Client, filled: Holder) -> None:
    assert rows(shown(viewer, f"{GROUPS}?part=NANT:2")) == ["tenant:2"]
    assert "No group of that name" in shown(viewer, f"{GROUPS}?part=stripe")
    page = unescape(shown(viewer, f"{GROUPS}?sort=age&after_name=x"))
    assert "sort must be one of waiting, name, got 'age'; the value is ignored." in page
    assert "after must be the next of a page of groups, got 'x'; the value is ignored." in page
    assert len(rows(page)) == 3


def test_pages_of_groups_have_each_group_once(viewer: Client, holder: Holder) -> None:
    for number in range(150):
        wait(holder, number, f"tenant:{number:03}", holder.accept(NOW))
    first = shown(viewer, f"{GROUPS}?part=tenant&sort=name")
    link = unescape(first.split('class="paginator"><a href="')[1].split('"')[0])
    found = [*rows(first), *rows(shown(viewer, f"{GROUPS}{link}"))]
    assert found == [f"tenant:{number:03}" for number in range(150)]


def test_the_largest_of_very_many_groups_are_shown_and_the_others_counted(viewer: Client, filled: Holder) -> None:
    groups = {"count": FEW + 2, "waiting": 9_000, "largest": [["tenant:2", 3, 1, [1]], [NASTY, 2, 0, [0]]]}
    renew(filled, groups=groups | {"starving": [], "starving_count": 0, "unreported": []})
    page = shown(viewer, GROUPS)
    assert rows(page) == ["tenant:2", NASTY]
    assert "2,000 more groups have as many waiting tasks or fewer." in page
    assert "more groups" not in shown(viewer, f"{GROUPS}?sort=name")


def test_the_lane_of_waiting_tasks_is_named(viewer: Client, filled: Holder) -> None:
    for address in ("wheel", "shard"):
        page = shown(viewer, f"{ADMIN}/{address}/")
        assert "tasks that wait for their group or for room in their queue" in page
        assert "beside the main lane" not in page


def test_limits_of_a_class_are_in_brackets(viewer: Client, filled: Holder, conf: Configure) -> None:
    conf(wheel_limits={"tenant": {"rate": "7/s"}, "<b>tenant</b>": {"concurrency": 2}})
    page = shown(viewer, GROUPS)
    assert "<td>(at most 2 in flight)</td>" in page


def test_an_operator_reaches_the_actions_on_a_group_from_its_line(operator: Client, filled: Holder) -> None:
    filled.apply(gates=[Gate("group", "tenant:2", PAUSED, 0, "", "root", NOW)])
    renew(filled)
    page = shown(operator, GROUPS)
    for link in (
        f"{ADMIN}/pending/?group=tenant%3A2",
        f"{GROUPS}limits/?group=%3Cb%3Etenant%3C%2Fb%3E%3A1",
        f"{ADMIN}/wheel/gate/?verb=resume&amp;scope=group&amp;name=tenant%3A2",
        f"{ADMIN}/wheel/gate/?verb=pause&amp;scope=group&amp;name=%3Cb%3Etenant%3C%2Fb%3E%3A1",
    ):
        assert link in page
    assert "paused since" in page
