"""Tickets at the example's start page, with its scheduler and its worker."""

import http.cookiejar
import re
import urllib.parse
import urllib.request

import pytest
from demo.broker import free_port
from demo.stack import Stack

from tests.servers import wait_until


class Browser:
    """As much of one as a form needs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        self._token = ""

    def page(self) -> str:
        with self._opener.open(self._url + "/", timeout=10) as page:
            text: str = page.read().decode()
        self._token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', text)[0]
        return text

    def post(self, path: str, **fields: str) -> None:
        data = urllib.parse.urlencode({"csrfmiddlewaretoken": self._token, **fields}).encode()
        self._opener.open(self._url + path, data, timeout=20).close()

    def state(self, order: int) -> str:
        [found] = re.findall(rf"Order {order}: [^<]*</td><td>(\w+)<", self.page())
        return str(found)


@pytest.mark.timeout(180)
def test_an_order_is_cancelled_unless_it_is_paid_within_its_time(stack: Stack) -> None:
    port = free_port()
    stack.start_broker()
    stack.migrate()
    stack.start_beat()
    worker = stack.start_worker()
    stack.start_web(port)
    stack.wait_for_web(port)
    stack.wait_for_worker(worker)
    browser = Browser(port)
    assert "Tickets" in browser.page()
    browser.post("/orders/", flight="UA1545 EWR-IAH")
    browser.post("/orders/", flight="AA1141 JFK-MIA")
    assert [browser.state(1), browser.state(2)] == ["open", "open"]
    browser.post("/orders/1/pay/")
    assert browser.state(1) == "paid"
    wait_until(lambda: browser.state(2) == "cancelled", "the other is cancelled", 60)
    browser.post("/orders/2/pay/")
    assert [browser.state(1), browser.state(2)] == ["paid", "cancelled"], "too late is too late"
