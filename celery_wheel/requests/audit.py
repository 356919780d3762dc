"""The chains of the audit log: their check, and an export that a third party can check without this package.

::

    base ─► entry ─► entry ─► … ─► head         each digest is made of the digest before it and of its entry
              │                      └ noted heads: a chain that was cut at its end, or made anew, differs from them
              └ missing, changed or out of place: the first such number is named

Both read some hundred entries at a time, so the log may have millions. Entries that are written meanwhile are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from celery_wheel.store.audit_model import AuditChain, AuditCriteria, ChainEntry, Link, fault_of
from celery_wheel.store.ports import FullStore
from celery_wheel.values import json_object
from celery_wheel.values.mask import Mask, unquoted

#: Entries in memory at a time; one has up to a thousand names.
PAGE = 200


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The check of a chain."""

    chain: int  #: number of the shard; -1: acts on the whole store
    first: int  #: number of the first entry that the store has; after ``last`` where it has none
    last: int  #: number of the last entry
    head: str  #: CHAIN:NUMBER:DIGEST of the last entry, to be noted elsewhere
    erased: int  #: entries without their texts, which were erased
    problem: str  #: the first one; empty: the chain is whole


def verify(store: FullStore, heads: Iterable[Link] = ()) -> list[ChainReport]:
    """Check all chains, and that they have the heads that were noted."""
    noted = set(heads)
    chains = {one.chain: one for one in store.browse.audit_chains()}
    gone = {number: AuditChain.begin(number) for number in sorted({one.chain for one in noted} - chains.keys())}
    return [
        _verify(store, one, {link for link in noted if link.chain == one.chain})
        for one in (*chains.values(), *gone.values())
    ]


def _verify(store: FullStore, chain: AuditChain, noted: set[Link]) -> ChainReport:
    before, erased, problem = chain.base, 0, ""
    found = {before.number: before}
    for one in _entries(store, chain, AuditCriteria()):
        if fault := fault_of(before, one):
            problem = f"entry {before.number + 1} {fault}"
            break
        before = one.link
        erased += one.salt is None
        if any(link.number == before.number for link in noted):
            found[before.number] = before
    else:
        if before != chain.head:
            is_short = before.number < chain.number
            problem = f"entry {before.number + 1} is missing" if is_short else f"entry {before.number} was changed"
    now = next((one for one in store.browse.audit_chains() if one.chain == chain.chain), chain)
    if problem and now.base_number > chain.base_number:  # retention has removed entries meanwhile
        return _verify(store, now, noted)
    if not problem and now.number == chain.number and store.browse.audit_entries(chain.chain, chain.number, 1):
        problem = f"entry {chain.number + 1} is out of place: the chain ends before it"
    problem = problem or next((text for link in sorted(noted) if (text := _differs(link, chain, found))), "")
    return ChainReport(chain.chain, chain.base_number + 1, chain.number, str(chain.head), erased, problem)


def _differs(noted: Link, chain: AuditChain, found: dict[int, Link]) -> str:
    """Return how the chain differs from a head that was noted; empty where it has it."""
    if noted.number > chain.number:
        return f"entry {noted.number} of the noted head is missing: the chain was cut, or the store was restored"
    if noted.number < chain.base_number:
        return f"entry {noted.number} of the noted head was removed by retention: compare a later head"
    if found.get(noted.number) != noted:
        return f"entry {noted.number} is not that of the noted head: the chain was made anew, or the store was restored"
    return ""


def _entries(store: FullStore, chain: AuditChain, criteria: AuditCriteria) -> Iterator[ChainEntry]:
    """Yield the entries up to the head that was read, in their order, a page at a time."""
    after = chain.base_number
    while page := store.browse.audit_entries(chain.chain, after, PAGE, criteria):
        for one in page:
            if one.number > chain.number:
                return
            yield one
        after = page[-1].number


def export(store: FullStore, criteria: AuditCriteria, mask: Mask, *, without_values: bool = False) -> Iterator[str]:
    """Yield lines of JSON: the chains, and then each entry, by chain and number. docs/permissions.md has their check.

    An entry with a hidden value has no salt: its place in the chain can be checked, and its texts cannot.
    """
    chains = [one for one in store.browse.audit_chains() if one.number > one.base_number]
    yield _line({"chains": [one._asdict() for one in chains], "whole": criteria == AuditCriteria()})
    for chain in chains:
        for one in _entries(store, chain, criteria):
            yield _line(asdict(_shown(one, mask, without_values)))


def _shown(one: ChainEntry, mask: Mask, without_values: bool) -> ChainEntry:
    found = json_object(one.results)
    results = with_reasons(found, mask.text)
    results = with_reasons(results, unquoted) if without_values else results
    return one if results == found else replace(one, results=json.dumps(results), salt=None)


def with_reasons(results: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the results of names with their reasons changed, which may quote arguments."""
    return {
        name: {**result, "reason": change(result["reason"])}
        if isinstance(result, dict) and isinstance(result.get("reason"), str)
        else result
        for name, result in results.items()
    }


def _line(values: dict[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"
