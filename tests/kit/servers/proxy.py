"""A proxy before a server: ``pause`` cuts its clients off from the server, and no other clients."""

import asyncio
import socket
import sys
from contextlib import suppress
from pathlib import Path

from tests.kit.processes import Process, python
from tests.kit.servers import Server

AT_ONCE = 65_536


class Proxy(Server):
    def __init__(self, folder: Path, target: int) -> None:
        super().__init__(folder)
        self.target = target

    def launch(self, port: int) -> Process:
        return python(self.folder / "proxy.log", "-m", "tests.kit.servers.proxy", str(port), str(self.target))

    def answers(self, port: int) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(AT_ONCE):
            writer.write(some)
            await writer.drain()
    writer.close()


async def _serve(port: int, target: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:])))
