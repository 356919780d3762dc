"""A private RabbitMQ, with as many virtual hosts as the tests need.

::

    with RabbitServer(folder) as server:
        server.url                    amqp://guest:guest@127.0.0.1:<port>//
        server.fresh()                the URL of a new virtual host
        server.kill(); server.start() durable queues and confirmed messages come back

All its files are in its folder. Its name, its ports and the port mapper (epmd), which ends with it, are its own.
Starting takes some seconds.
"""

import itertools
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

import psutil
import pytest
from kombu import Connection

from tests.kit.patience import patience
from tests.kit.processes import Process
from tests.kit.servers import Server, absent, free_port

#: Marks the tests that share one server among all processes of pytest-xdist, also where a parameter chooses the server.
ON_RABBITMQ = pytest.mark.xdist_group("rabbitmq")

#: Virtual hosts made in one go: rabbitmqctl starts an Erlang of its own each time.
AT_ONCE = 30

#: The scripts of the package become the user rabbitmq when they are started by root; those beneath do not.
_BENEATH = Path(os.environ.get("RABBITMQ_BIN", "/usr/lib/rabbitmq/bin"))


def _binary(name: str) -> str | Path:
    found = _BENEATH / name if (_BENEATH / name).exists() else shutil.which(name)
    return found or absent(name)


class RabbitServer(Server):
    START_S = 60.0
    options = ""  #: more lines of its configuration

    def __init__(self, folder: Path, max_message_size: int = 10**6, listens: str = "127.0.0.1") -> None:
        super().__init__(folder)
        self._listens = listens
        self._max_message_size = max_message_size  #: bytes
        self.ports: dict[str, int] = {}
        self._names = itertools.count(1)
        self._spare: list[str] = []

    def launch(self, port: int) -> Process:
        binary = _binary("rabbitmq-server")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ports = {"dist": free_port(), "epmd": free_port(), **self.ports, "tcp": port}
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {self._listens}:{port}\nloopback_users = none\ndisk_free_limit.absolute = 50MB\n"
            f"log.console = false\nmax_message_size = {self._max_message_size}\n{self.options}"
        )
        (self.folder / "enabled_plugins").write_text("[].")
        return Process([binary], self.folder / "start.log", environment=self._environment())

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "HOME": str(folder),  # the cookie
            "RABBITMQ_NODENAME": f"wheel{self.ports['tcp']}@localhost",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(self.ports["dist"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "ERL_EPMD_PORT": str(self.ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def answers(self, port: int) -> bool:
        try:
            with Connection(f"amqp://guest:guest@127.0.0.1:{port}//", connect_timeout=2) as connection:
                connection.connect()
        except Exception:  # not listening, not ready, or not let in yet
            return False
        return True

    def start(self) -> Self:
        super().start()
        self.ctl("await_startup")  # it listens before it carries out commands
        return self

    def _gone(self) -> None:
        super()._gone()
        with socket.socket() as probe:  # the same port is taken again at once
            probe.settimeout(1)
            probe.connect_ex(("127.0.0.1", self.port))

    def hanging(self) -> list[psutil.Process]:
        """Return Erlang's virtual machine, without its helpers."""
        found = [process for process in self.running.family() if "beam" in process.name()]
        assert found
        return found

    def __exit__(self, *_: object) -> None:
        self.kill()
        for one in psutil.process_iter(["name", "environ"]):
            # The port mapper puts itself into the background; it is ours if it has our port.
            environment = one.info["environ"] or {}
            if one.info["name"] == "epmd" and environment.get("ERL_EPMD_PORT") == str(self.ports.get("epmd")):
                one.kill()

    # -- use -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def fresh(self) -> str:
        if not self._spare:
            names = [f"test{next(self._names)}" for _ in range(AT_ONCE)]
            rights = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
            definitions = self.folder / "definitions.json"
            hosts, permissions = [{"name": name} for name in names], [{"vhost": name, **rights} for name in names]
            definitions.write_text(json.dumps({"vhosts": hosts, "permissions": permissions}))
            self.ctl("import_definitions", str(definitions))
            self._spare = names
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{self._spare.pop()}"

    def ctl(self, *arguments: str) -> str:
        done = subprocess.run(
            [_binary("rabbitmqctl"), *arguments],
            env={**os.environ, **self._environment()},
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
