"""The Lua scripts of this folder, run by their digest.

A server that lost its script cache (restart, SCRIPT FLUSH, failover) answers NOSCRIPT. The script has certainly not run
then, and the call is repeated with the whole text. Every other error goes to the caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError


class Script:
    """A file of this folder and its digest."""

    def __init__(self, name: str) -> None:
        self.text = files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(
        self, client: Redis, keys: Sequence[str | bytes], args: Sequence[str | bytes | int]
    ) -> tuple[str, Any]:
        """Run the script; returns the first word of its answer and, where the answer has one, its value."""
        try:
            answer: Any = client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            answer = client.eval(self.text, len(keys), *keys, *args)
        word, *rest = answer
        return word.decode(), rest[0] if rest else None


ADOPT = Script("adopt")
CLAIM = Script("claim")
CHANGE = Script("change")
VERIFY = Script("verify")
PUBLISH = Script("publish")
TRIM = Script("trim")
