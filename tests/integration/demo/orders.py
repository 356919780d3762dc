"""Orders of tickets at the start page of a demo that runs."""

import http.cookiejar
import re
import time
import urllib.parse
import urllib.request
from itertools import count

from tests.integration.demo.runs import PATIENCE_S, wait

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


def order_and_pay(browser: Browser, order: int) -> float:
    """Place an order and pay it at once; returns the seconds that this took on the machine as busy as it is."""
    began = time.monotonic()
    browser.post("/orders/", flight="UA1545 EWR-IAH")
    browser.post(f"/orders/{order}/pay/")
    return time.monotonic() - began
