"""A drain in a process of its own, which the tests kill: ``python drain_project.py (broker | <file>) [<stop after>]``.

It stops, and waits to be killed, when so many tasks were handed over, written, or laid to rest.
"""

from __future__ import annotations

import signal
import sys

from leaving_project import app

from celery_wheel.leaving import drain, open_for_leaving


def main(where: str, what: str = "", after: str = "0") -> None:
    def stop(doing: str, done: int, total: int) -> None:
        if doing == what and done >= int(after):
            print("stopped", doing, done, total, flush=True)
            signal.pause()

    store = open_for_leaving(app)
    try:
        way = {"to_broker": True} if where == "broker" else {"file": where}
        print("drained", drain(app, store, progress=stop, **way), flush=True)
    finally:
        store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
