"""A private RabbitMQ for tests, as ``tests.servers.RedisServer``; as many virtual hosts as tests ask for.

::

    with RabbitServer(folder) as server:
        server.url                    amqp://guest:guest@127.0.0.1:<port>//
        server.fresh()                the URL of a new virtual host
        server.kill(); server.start() SIGKILL; durable queues and confirmed messages come back
        server.pause(); server.resume()

Everything of it is in its folder, its name and its ports are its own, and so is the port mapper (epmd), which ends
with it. Starting takes some seconds.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
from kombu import Connection

from tests.servers import PATIENCE_S, absent, free_port, wait_until

START_S = 60.0

#: Virtual hosts made in one go: rabbitmqctl starts an Erlang of its own each time.
AT_ONCE = 12


class RabbitServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._ports: dict[str, int] = {}
        self._names = itertools.count(1)
        self._spare: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> RabbitServer:
        binary = shutil.which("rabbitmq-server") or "/usr/lib/rabbitmq/bin/rabbitmq-server"
        if not Path(binary).exists():
            absent("rabbitmq-server")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        self._ports = self._ports or {"dist": free_port(), "epmd": free_port()}
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nloopback_users = none\ndisk_free_limit.absolute = 50MB\n"
            "log.console = false\nmax_message_size = 1000000\n"
        )
        (self.folder / "enabled_plugins").write_text("[].")
        # The script of the package becomes the user rabbitmq when it is started by root; the one beneath does not.
        beneath = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        with (self.folder / "start.log").open("ab") as log:
            self._process = subprocess.Popen(
                [beneath if beneath.exists() else binary],
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process = self._process
        wait_until(lambda: process.poll() is not None or self._answers(), "rabbitmq-server", START_S)
        assert process.poll() is None, f"rabbitmq-server did not start:\n{self.log()}"
        return self

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            **os.environ,
            "HOME": str(folder),  # the cookie
            "RABBITMQ_NODENAME": f"wheel{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(self._ports["dist"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "ERL_EPMD_PORT": str(self._ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def _answers(self) -> bool:
        try:
            with Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except Exception:  # not listening, not ready, or not let in yet
            return False
        return True

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        all_of_it = [psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]
        for one in all_of_it:
            with suppress(psutil.NoSuchProcess):  # a helper of its own that has ended since
                one.send_signal(signal.SIGCONT)
                one.send_signal(how)
        self._process.wait(PATIENCE_S)
        psutil.wait_procs(all_of_it, PATIENCE_S)
        self._process = None
        with socket.socket() as probe:  # the same port is taken again at once
            probe.settimeout(1)
            probe.connect_ex(("127.0.0.1", self.port))

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        for one in self._machines():
            one.suspend()
            wait_until(lambda one=one: one.status() == psutil.STATUS_STOPPED, "rabbitmq-server is suspended")

    def resume(self) -> None:
        for one in self._machines():
            one.resume()

    def _machines(self) -> list[psutil.Process]:
        assert self._process is not None
        found = [one for one in psutil.Process(self._process.pid).children(recursive=True) if "beam" in one.name()]
        assert found
        return found

    def __enter__(self) -> RabbitServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for one in psutil.process_iter(["name", "environ"]):
            # The port mapper puts itself into the background; it is ours if it has our port.
            environment = one.info["environ"] or {}
            if one.info["name"] == "epmd" and environment.get("ERL_EPMD_PORT") == str(self._ports.get("epmd")):
                one.kill()

    # -- use -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def fresh(self) -> str:
        if not self._spare:
            self._spare = [f"test{next(self._names)}" for _ in range(AT_ONCE)]
            rights = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
            definitions = self.folder / "definitions.json"
            definitions.write_text(
                json.dumps(
                    {
                        "vhosts": [{"name": name} for name in self._spare],
                        "permissions": [{"vhost": name, **rights} for name in self._spare],
                    }
                )
            )
            self.ctl("import_definitions", str(definitions))
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{self._spare.pop()}"

    def ctl(self, *arguments: str) -> str:
        beneath = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
        done = subprocess.run(
            [str(beneath if beneath.exists() else "rabbitmqctl"), *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self) -> str:
        logs = [self.folder / "start.log", *sorted((self.folder / "log").glob("*.log"))]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in logs if path.exists())
