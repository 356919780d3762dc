"""``celery-wheel-probe``: ask a scheduler whether it is ready, by its port, without an app.

Celery's command line imports all of its commands, for 0.8 s and more; this program needs a twentieth of that. So a
container's probe costs little, each few seconds.
"""

from __future__ import annotations

import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException

#: The address that is asked where none is given.
ADDRESS = "127.0.0.1:9808"

#: Exit codes: as those of ``celery wheel``.
READY, NOT_READY, NO_ANSWER = 0, 3, 4

TIMEOUT_S = 10.0

USAGE = f"""usage: celery-wheel-probe [ADDRESS] [PATH]

Ask a scheduler whether it is ready.

ADDRESS is that of wheel_metrics, {ADDRESS} by default; PATH is /readyz by default, or /livez.
Exit codes: 0 ready, 3 not ready (the reasons are printed), 4 no answer.
"""


def probe(address: str = ADDRESS, path: str = "/readyz") -> tuple[int, str]:
    """Return the exit code, and the scheduler's answer or the reason why there is none."""
    host, _, port = address.rpartition(":")
    try:
        with closing(HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace").rstrip()
    except ValueError:
        return NO_ANSWER, f"the address must be like {ADDRESS}, got {address!r}"
    except (OSError, HTTPException) as error:
        return NO_ANSWER, f"no scheduler answers on {address} ({error}); does it run, and is wheel_metrics its address?"
    return (READY if answer.status == 200 else NOT_READY), text


def main() -> None:
    arguments = sys.argv[1:]
    if len(arguments) > 2 or any(one.startswith("-") for one in arguments):
        sys.stdout.write(USAGE)
        sys.exit(0 if arguments in (["--help"], ["-h"]) else 2)
    code, text = probe(*arguments)
    (sys.stdout if code == READY else sys.stderr).write(f"{text}\n")
    sys.exit(code)
