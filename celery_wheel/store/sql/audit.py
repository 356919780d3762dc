"""The chains of the audit log: entries are appended in the commit of their act, and forgotten from the oldest on.

::

    wheel_audit_chain     base ─┐        ┌─ head          locked by the writer until its commit
    wheel_audit           …     5 │ 6  7  8  9            retention moves the base; an entry moves the head

The holder of a shard has the shard's lock when it appends, so nobody else wants the lock of that chain. The chain of
the store has a writer now and then. The chain of a shard that was removed stays, and goes on if the shard comes back.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from celery_wheel.store.audit_model import FIRST_DIGEST, AuditEntry, ChainEntry, Link, chained
from celery_wheel.store.sql.schema import audit, audit_chain, shard
from celery_wheel.store.sql.statement import ObjectInsert, Statements, constant, names_of, places

#: Entries forgotten in one round.
ENTRIES_AT_ONCE = 5_000

#: An entry with a later time than this from now was written by a wrong clock: its time says nothing about its age.
FUTURE_MS = 120_000


class AuditStatements:
    def __init__(self, statements: Statements) -> None:
        here = audit_chain.c.chain == bindparam("at_chain")
        ends = select(audit_chain.c.chain, audit_chain.c.number, audit_chain.c.digest)
        self.head = statements(ends.where(here).with_for_update())
        new = statements.insert_or(audit_chain).inline()
        none: dict[str, Any] = {f"{one}number": constant(0) for one in ("", "base_")}
        none |= {f"{one}digest": constant(FIRST_DIGEST) for one in ("", "base_")}
        self.begin = statements(
            new.values(chain=bindparam("at_chain"), **none).on_conflict_do_nothing(index_elements=["chain"])
        )
        self.set_head = statements(update(audit_chain).where(here).values(places("number", "digest")))
        self.add = ObjectInsert(statements(insert(audit).inline().values(places(*names_of(ChainEntry)))))
        of_chain = audit.c.chain == bindparam("at_chain")
        self.oldest = statements(
            select(audit.c.number, audit.c.at_ms, audit.c.digest)
            .where(of_chain)
            .order_by(audit.c.number)
            .limit(bindparam("limit"))
        )
        self.forget = statements(delete(audit).where(of_chain, audit.c.number <= bindparam("upto")))
        self.set_base = statements(update(audit_chain).where(here).values(places("base_number", "base_digest")))
        self.others = statements(select(audit_chain.c.chain).where(audit_chain.c.chain.not_in(select(shard.c.shard))))


def append(connection: Connection, statements: Statements, chain: int, entries: Sequence[AuditEntry]) -> None:
    """Append entries to a chain, in the transaction of their act. Without entries nothing is read."""
    if not entries:
        return
    to = statements.of(AuditStatements)
    head = to.head(connection, at_chain=chain).one_or_none()
    if head is None:
        to.begin(connection, at_chain=chain)
        head = to.head(connection, at_chain=chain).one()
    found = chained(Link(*head), entries, [secrets.token_hex(16) for _ in entries])
    to.add.many(connection, found)
    to.set_head(connection, at_chain=chain, number=found[-1].number, digest=found[-1].digest)


def forget(connection: Connection, statements: Statements, of_shard: int, before_ms: int, now_ms: int) -> None:
    """Forget the oldest entries of the shard's chain. The first shard does so for the chains that no shard has."""
    of = statements.of(AuditStatements)
    chains = [of_shard, *(of.others(connection).scalars() if of_shard == 0 else ())]
    for chain in chains:
        upto = None
        for limit in (1, ENTRIES_AT_ONCE):  # mostly nothing is old
            for row in of.oldest(connection, at_chain=chain, limit=limit).all():
                if row.at_ms < before_ms:
                    upto = row
                elif row.at_ms <= now_ms + FUTURE_MS:
                    break
            else:
                continue
            break
        if upto is not None:
            of.forget(connection, at_chain=chain, upto=upto.number)
            of.set_base(connection, at_chain=chain, base_number=upto.number, base_digest=upto.digest)
