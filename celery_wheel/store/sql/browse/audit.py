"""The audit log, page by page: the parts of all shards merged into requests, or the entries of a chain.

The parts of a request have one time, unless the asker's clock was wrong: then each shard wrote its own. Such a request
is shown at its latest time. A look for a name reads the results of each entry in the filter's times.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, func, select, tuple_

from celery_wheel.store.audit_model import (
    PEOPLE,
    PERSONS,
    AuditChain,
    AuditCriteria,
    AuditedRequest,
    AuditPage,
    ChainEntry,
    Link,
    cursor_of,
    place_of,
)
from celery_wheel.store.sql.catalogue import StorePart
from celery_wheel.store.sql.schema import audit, audit_chain
from celery_wheel.store.sql.statement import columns_of

_KEY = (audit.c.at_ms, audit.c.request)

#: The parts of a request differ so much in time at most: each holder answers within the asker's timeout.
SPREAD_MS = 60_000

#: A task may have a result in several shards: the last in this order counts.
_RANK = ("unknown", "too_late", "already", "done")


class AuditLog(StorePart):
    def audit(self, criteria: AuditCriteria, before: str | None = None, limit: int = 100) -> AuditPage:
        latest_first = [column.desc() for column in _KEY]
        found = select(*_KEY).where(*_matches(criteria)).distinct().order_by(*latest_first).limit(limit + 1)
        if before is not None:
            found = found.where(tuple_(*_KEY) < tuple_(*place_of(before)))
        with self._database.snapshot() as connection:
            keys: list[tuple[int, str]] = [tuple(row) for row in connection.execute(found)]
            shown, more = keys[:limit], keys[limit:]
            if not shown:
                return AuditPage([], None)
            near = audit.c.at_ms.between(shown[-1][0] - SPREAD_MS, shown[0][0] + SPREAD_MS)
            place = near, audit.c.request.in_([request for _, request in shown])
            last = select(audit.c.request, func.max(audit.c.at_ms).label("last_ms")).where(*place, *_matches(criteria))
            latest = {one.request: one.last_ms for one in connection.execute(last.group_by(audit.c.request))}
            found_parts = select(audit).where(*place).order_by(audit.c.request, audit.c.chain, audit.c.number)
            parts = connection.execute(found_parts).all()
        of_request = {request: list(same) for request, same in groupby(parts, lambda part: str(part.request))}
        items = [_merged(of_request[request], at_ms) for at_ms, request in shown if latest[request] == at_ms]
        return AuditPage(items, cursor_of(*shown[-1]) if more else None)

    def audit_chains(self) -> list[AuditChain]:
        """Return the chains with their ends, that of the store first; one without a row of its own is empty."""
        with self._database.reading() as connection:
            found = [AuditChain(*row) for row in connection.execute(select(*columns_of(AuditChain, audit_chain)))]
            numbers = set(connection.execute(select(audit.c.chain).distinct()).scalars())
        return sorted([*found, *(AuditChain.begin(one) for one in numbers - {one.chain for one in found})])

    def audit_entries(
        self, chain: int, after: int, limit: int, criteria: AuditCriteria | None = None
    ) -> list[ChainEntry]:
        """Return the next entries of a chain after a number, in their order, or those of them that match."""
        where = (audit.c.chain == chain, audit.c.number > after, *_matches(criteria or AuditCriteria()))
        found = select(*columns_of(ChainEntry, audit)).where(*where).order_by(audit.c.number).limit(limit)
        with self._database.reading() as connection:
            return [ChainEntry(*row) for row in connection.execute(found)]


def _matches(criteria: AuditCriteria) -> list[ColumnElement[bool]]:
    equal = ((audit.c.action, criteria.action), (audit.c.bulk, criteria.bulk))
    found = [column == value for column, value in equal if value is not None]
    if criteria.origin is not None:
        found.append(audit.c.origin.in_(PERSONS if criteria.origin == PEOPLE else [criteria.origin]))
    if criteria.actor is not None:
        found.append(audit.c.actor.icontains(criteria.actor, autoescape=True))
    if criteria.name is not None:  # as the name of a result, in JSON
        found.append(audit.c.results.contains(f"{json.dumps(criteria.name)}: ", autoescape=True))
    if criteria.from_ms is not None:
        found.append(audit.c.at_ms >= criteria.from_ms)
    if criteria.to_ms is not None:
        found.append(audit.c.at_ms < criteria.to_ms)
    return found


def _merged(parts: list[Any], at_ms: int) -> AuditedRequest:
    results: dict[str, Any] = {}
    for part in parts:
        for name, result in json.loads(part.results).items():
            results[name] = _better(results.get(name), result)
    one = parts[0]
    details = json.loads(one.details)
    about = one.request, at_ms, one.origin, one.actor, one.action, one.reason
    entries = [str(Link(part.chain, part.number, part.digest)) for part in parts]
    return AuditedRequest(*about, details, one.bulk, results, entries)


def _better(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):  # the counts of a key, which tasks of several shards watch
        return {name: one.get(name, 0) + value for name, value in other.items()}
    if one in _RANK and other in _RANK:
        return max(one, other, key=_RANK.index)
    return other
