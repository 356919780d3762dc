"""A drain in a process of its own, which the tests kill: ``python -m … (broker | <file>) [<doing> <after>]``.

The drain stops, and waits to be killed, when ``after`` tasks are dispatched, written, or moved.
"""

import signal
import sys

from celery_wheel.operations.drain import drain, open_existing_store
from tests.kit.project import app


def main(where: str, what: str = "", after: str = "0") -> None:
    def stop(doing: str, done: int, total: int) -> None:
        if doing == what and done >= int(after):
            print("stopped", doing, done, total, flush=True)
            signal.pause()

    store = open_existing_store(app)
    try:
        way = {"to_broker": True} if where == "broker" else {"file": where}
        print("drained", drain(app, store, progress=stop, **way), flush=True)
    finally:
        store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
