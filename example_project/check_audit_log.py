"""Check an export of the audit log, without celery-wheel, and print the head of each chain.

The one argument is a file of JSON lines. An error names the first entry that was changed, removed or moved.
"""

import hashlib
import json
import sys
from typing import Any


def digest(*values: Any) -> str:
    texts = [("" if value is None else str(value)).encode() for value in values]
    return hashlib.sha256(b"".join(len(text).to_bytes(8, "big") + text for text in texts)).hexdigest()


def require(is_right: bool, error: Any) -> None:
    if not is_right:
        raise ValueError(error)


def read(line: str) -> Any:
    found = json.loads(line)
    require(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n" == line, line)
    return found


with open(sys.argv[1], encoding="utf-8", newline="\n") as lines:
    first = read(next(lines))
    require(first["whole"], "a filter has left entries out")
    for chain in first["chains"]:
        before = chain["base_digest"]
        for number in range(chain["base_number"] + 1, chain["number"] + 1):
            one = read(next(lines))
            content = digest(one["salt"], one["reason"], one["details"], one["results"])
            require(content == one["content"] or one["salt"] is None, one)
            about = [one[name] for name in ("request", "at_ms", "origin", "actor", "action", "bulk", "content")]
            before = digest(before, chain["chain"], number, *about)
            require((one["chain"], one["number"], one["digest"]) == (chain["chain"], number, before), one)
        require(before == chain["digest"], chain)
        print(f"{chain['chain']}:{chain['number']}:{before}")
    require(not next(lines, ""), "the file has more lines than entries")
