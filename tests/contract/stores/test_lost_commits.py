"""A request whose answer to COMMIT is lost on the way from PostgreSQL has a definite result all the same.

::

    caller ──► Cut ──► PostgreSQL       everything passes, until Cut has seen a COMMIT after the INSERT of a command:
                                        that COMMIT reaches the server or does not, and the connection ends
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest

from celery_wheel.errors import RequestInDoubt
from celery_wheel.requests.answers import OpenStore
from celery_wheel.requests.request import Request
from celery_wheel.requests.results import CommandResult
from celery_wheel.store import open_store
from celery_wheel.store.model import Answer, Change
from celery_wheel.store.sql.store import SqlStore
from tests.contract.stores.backends import LEASE_MS
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer

CANCEL = 0, "cancel", b"{}"


class Cut:
    """A proxy in threads of this process.

    ``passes_commit`` is whether the COMMIT of the next request reaches the server; None: no connection is cut.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.passes_commit: bool | None = None
        self.is_away = False  #: from the cut on no client reaches the server
        self._clients: list[socket.socket] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_away:
                    client.close()
                    continue
                self._clients.append(client)
                server = socket.create_connection(("127.0.0.1", self._target))
                for pump in (self._requests, self._answers):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        has_put = False
        with suppress(OSError):
            while some := client.recv(65_536):
                has_put |= b"INSERT INTO wheel_inbox" in some
                if has_put and b"COMMIT" in some and self.passes_commit is not None:
                    passes, self.passes_commit = self.passes_commit, None
                    self.cuts += 1
                    for one in self._clients if self.is_away else [client]:
                        with suppress(OSError):  # another connection may have ended before
                            one.shutdown(socket.SHUT_RDWR)
                    if passes:
                        server.sendall(some)
                    break
                server.sendall(some)
        with suppress(OSError):  # the session may have ended
            server.shutdown(socket.SHUT_WR)  # the server carries out what it has, and ends the session

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with server, client, suppress(OSError):
            while some := server.recv(65_536):
                client.sendall(some)


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def direct(url: str) -> Iterator[SqlStore]:
    store = open_store(url, lease_ms=LEASE_MS)
    yield store
    store.close()


@pytest.fixture
def cut(postgres: PostgresServer) -> Iterator[Cut]:
    proxy = Cut(postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def far(cut: Cut, url: str, direct: SqlStore, postgres: PostgresServer) -> Iterator[SqlStore]:
    """Return the same store behind the proxy."""
    store = open_store(url.replace(f":{postgres.port}/", f":{cut.port}/"), lease_ms=LEASE_MS)
    yield store
    store.close()


def holder(store: SqlStore) -> Callable[[], None]:
    epoch = store.acquire(0, "one", 0, 60_000)
    assert epoch is not None

    def turn() -> None:
        for item in store.read_inbox(0, 10):
            answer = Answer(json.loads(item.payload)["id"], {"a": "done"}, 0)
            store.apply(0, epoch, Change(inbox=[item.id], answers=[answer]))

    return turn


def cancel(store: SqlStore, turn: Callable[[], None], timeout_s: float) -> dict[str, CommandResult]:
    opened = OpenStore("", store)
    request = Request(lambda: opened, "cancel", ["a"], {}, timeout_s, turn=turn)
    request.send()
    return request.receive()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_answer_to_a_commit_does_not_cost_the_result(
    direct: SqlStore, far: SqlStore, cut: Cut, arrives: bool
) -> None:
    cut.passes_commit = arrives
    assert cancel(far, holder(direct), patience()) == {"a": CommandResult.DONE}
    assert cut.cuts == 1
    assert direct.read_inbox(0, 10) == []


def test_a_store_that_stays_away_after_the_commit_leaves_the_request_in_doubt(
    direct: SqlStore, far: SqlStore, cut: Cut
) -> None:
    put = far.put_commands

    def put_and_vanish(*commands: object) -> list[int]:
        cut.passes_commit, cut.is_away = True, True
        return put(*commands)  # type: ignore[arg-type]

    far.put_commands = put_and_vanish  # type: ignore[method-assign]
    with pytest.raises(RequestInDoubt, match=r"may still be carried out in shard 0, where it could not be withdrawn"):
        cancel(far, lambda: None, 0.3)
    wait_until(lambda: direct.read_inbox(0, 10), "the request is there")


def test_a_withdrawal_waits_for_a_transaction_whose_client_is_gone(direct: SqlStore, url: str) -> None:
    """A server that waits for its standby commits after the client has given up."""
    item = direct.put_command(*CANCEL)
    assert direct.withdraw(item, CANCEL)
    found: list[bool] = []
    with psycopg.connect(url) as forgotten:
        forgotten.execute("INSERT INTO wheel_inbox (id, shard, kind, payload) VALUES (%s, %s, %s, %s)", (item, *CANCEL))
        late = threading.Thread(target=lambda: found.append(direct.withdraw(item, CANCEL)))
        late.start()
        with psycopg.connect(url, autocommit=True) as looker:
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(lambda: looker.execute(waits).fetchone() == (1,), "the withdrawal waits")
        forgotten.commit()
    late.join(patience())
    assert found == [True]
    assert direct.read_inbox(0, 10) == []


def test_an_item_of_the_same_number_is_not_withdrawn(direct: SqlStore) -> None:
    item = direct.put_command(0, "cancel", b'{"other": 1}')
    assert not direct.withdraw(item, CANCEL)
    assert [one.id for one in direct.read_inbox(0, 10)] == [item]
