"""Packed messages, one by one."""

from celery_wheel.store.message_pack import PackTemplate, unpack


def lines(payload: bytes) -> list[tuple[PackTemplate, tuple[str, ...]]]:
    """Return the template and the values of each packed message, in their order."""
    found = unpack(payload)
    return found.in_order([[(kind.template, row) for row in kind.rows()] for kind in found.kinds])
