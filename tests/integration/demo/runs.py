"""A run of the demo, for its tests: its processes, its progress, and orders of tickets at its start page."""

import http.cookiejar
import re
import sqlite3
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import psutil

from tests.kit.patience import wait_until

PROJECT = Path(__file__).parents[3] / "example_project"

#: Seconds that a state may take. Tests wait for a state and never for a time, so a quick machine waits no longer than
#: the state takes, and a slow or busy machine may take this long.
PATIENCE_S = 240.0
#: Seconds for a whole test, which waits for several states.
TEST_S = 3 * PATIENCE_S


def wait(reached: Callable[[], object], what: str) -> None:
    wait_until(reached, what, PATIENCE_S)


def processes_of(run_dir: Path) -> list[psutil.Process]:
    """Return the live processes of this machine that were started for this run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RUN_DIR") == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def executed(run_dir: Path) -> int:
    with closing(sqlite3.connect(run_dir / "flights.sqlite3", timeout=PATIENCE_S)) as database:
        return int(database.execute("select count(*) from flights_execution").fetchone()[0])


PAY_WITHIN_S = 20.0  #: flights.orders.PAY_WITHIN_S, which only a Django process can import


class Browser:
    """A browser with only the cookies that a form needs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        self._token = ""

    def page(self) -> str:
        with self._opener.open(self._url + "/", timeout=PATIENCE_S) as page:
            text: str = page.read().decode()
        self._token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', text)[0]
        return text

    def post(self, path: str, **fields: str) -> None:
        data = urllib.parse.urlencode({"csrfmiddlewaretoken": self._token, **fields}).encode()
        self._opener.open(self._url + path, data, timeout=PATIENCE_S).close()

    def state(self, order: int) -> str:
        [found] = re.findall(rf"Order {order}: [^<]*</td><td>(\w+)<", self.page())
        return str(found)


def order_paid_and_unpaid(port: int) -> None:
    """Place two orders at a demo's page: the paid one stays, and the other is cancelled after its time."""
    browser = Browser(port)
    assert "Tickets" in browser.page()
    paid = next(order for order in count(1) if order_and_pay(browser, order) < PAY_WITHIN_S)
    assert browser.state(paid) == "paid"
    browser.post("/orders/", flight="AA1141 JFK-MIA")
    unpaid = paid + 1
    wait(lambda: browser.state(unpaid) == "cancelled", "the cancellation of the unpaid order")
    browser.post(f"/orders/{unpaid}/pay/")
    assert [browser.state(paid), browser.state(unpaid)] == ["paid", "cancelled"], "a late payment changes nothing"


def storm_of_one_airline(port: int) -> None:
    """Let one airline send many notices: those of the others do not wait for them."""
    browser = Browser(port)
    assert "Notices" in browser.page()
    browser.post("/notices/", airline="UA")

    def waiting() -> dict[str, int]:
        found = re.findall(r"<tr><td>(\w\w)</td><td>\d+</td><td>(\d+)</td>", browser.page())
        return {airline: int(count) for airline, count in found}

    wait(lambda: all(not count for airline, count in waiting().items() if airline != "UA"), "the notices of the others")
    assert waiting()["UA"] > 0, "the storm goes on"


def order_and_pay(browser: Browser, order: int) -> float:
    """Place an order and pay it at once; returns the seconds that this took on the machine as busy as it is."""
    began = time.monotonic()
    browser.post("/orders/", flight="UA1545 EWR-IAH")
    browser.post(f"/orders/{order}/pay/")
    return time.monotonic() - began
