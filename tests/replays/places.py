"""The files of a replay: a store and a wheel queue are written from servers, and brought back into others."""

import base64
import json
import lzma
import os
import re
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.kit.servers.postgres import postgres_binaries

ROOT = Path(__file__).parent

#: Properties that a consumer gets. The edge of RabbitMQ gives each message an id, by which a refusal is told; the time
#: that is left of ``expires`` is another in each moment.
PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "app_id", "type")

#: Lines of a dump that other versions of psql or of the server may not know.
_OF_VERSION = re.compile(rb"^(SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*|--.*)?\n", re.MULTILINE)


def folders() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0].isdigit()]
    return sorted(found, key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)])


def write_sqlite(file: Path, into: Path) -> None:
    copy = file.with_suffix(".copy")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("VACUUM")
    into.write_bytes(lzma.compress(copy.read_bytes(), preset=9))
    copy.unlink()


def read_sqlite(packed: Path, into: Path) -> str:
    """Bring the file back; returns the URL of the store."""
    into.write_bytes(lzma.decompress(packed.read_bytes()))
    return f"sqlite:///{into}"


def write_postgresql(url: str, into: Path) -> None:
    options = ("--inserts", "--rows-per-insert=50", "--no-owner", "--no-privileges", "--no-comments")
    into.write_bytes(_OF_VERSION.sub(b"", _postgresql("pg_dump", *options, url)))


def read_postgresql(dump: Path, url: str) -> str:
    _postgresql("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", url)
    return url


def _postgresql(tool: str, *arguments: str) -> bytes:
    folder = postgres_binaries()
    assert folder is not None
    done = subprocess.run([folder / tool, *arguments], capture_output=True, env={**os.environ, "PSQLRC": os.devnull})
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def write_redis(client: Any, into: Path) -> None:
    """Write every key of the wheel, lists as their messages."""
    found: dict[str, Any] = {}
    for key in sorted(client.scan_iter("wheel.*")):
        kind = client.type(key).decode()
        read = {"list": lambda key: client.lrange(key, 0, -1), "hash": client.hgetall, "string": client.get}[kind]
        found[key.decode()] = _text(read(key))
    write(into, found)


def read_redis(file: Path, client: Any) -> None:
    for key, value in json.loads(file.read_bytes()).items():
        if isinstance(value, list):
            client.rpush(key, *value)
        elif isinstance(value, dict):
            client.hset(key, mapping=value)
        else:
            client.set(key, value)


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return {_text(k): _text(v) for k, v in value.items()} if isinstance(value, dict) else [_text(one) for one in value]


def write_rabbitmq(app: Any, names: Sequence[str], into: Path) -> None:
    """Take every message out of the wheel queues, and write it."""
    found: dict[str, list[Any]] = {}
    with app.connection_for_read() as connection, connection.channel() as channel:
        for name in names:
            found[name] = []
            while (message := channel.basic_get(name, no_ack=True)) is not None:
                properties = dict(message.properties)
                headers = properties.pop("application_headers", {})
                found[name].append({"headers": headers, "properties": properties, "body": as_base64(message.body)})
    write(into, found)


def read_rabbitmq(file: Path, app: Any) -> None:
    with app.connection_for_write() as connection, connection.channel() as channel:
        for name, messages in json.loads(file.read_bytes()).items():
            channel.queue_declare(name, durable=True, auto_delete=False)
            for one in messages:
                properties = one["properties"]
                kinds = [properties.pop(name, None) for name in ("priority", "content_type", "content_encoding")]
                message = channel.prepare_message(base64.b64decode(one["body"]), *kinds, one["headers"], properties)
                channel.basic_publish(message, exchange="", routing_key=name)


def take(app: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Take all messages out of some queues, as a consumer gets them."""
    found = []
    with app.connection_for_read() as connection, connection.channel() as channel:
        for queue in (one for one in app.amqp.queues.values() if one.name in names):
            bound = queue(channel)
            bound.declare()
            while (message := bound.get(no_ack=True)) is not None:
                found.append(_received(queue.name, message))
    return found


def _received(queue: str, message: Any) -> dict[str, Any]:
    found = {
        "queue": queue,
        "headers": message.headers,
        "properties": {name: message.properties.get(name) for name in PROPERTIES},
        "kind": [message.content_type, message.content_encoding],
        "body": as_base64(message.body),
    }
    return as_read(found)


def as_base64(body: bytes | str) -> str:
    return base64.b64encode(body.encode() if isinstance(body, str) else bytes(body)).decode()


def as_read(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value as it is read from a file."""
    found: dict[str, Any] = json.loads(json.dumps(value))
    return found


def write(into: Path, value: Any) -> None:
    into.write_text(json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
