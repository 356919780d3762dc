"""How PostgreSQL is to look after the tables; see ``celery_wheel.store.postgresql_tables``."""

from __future__ import annotations

from typing import Any

from django.db import migrations

_LOG = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "20000",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_vacuum_insert_threshold": "50000",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_analyze_threshold": "20000",
    "autovacuum_vacuum_cost_delay": "1",
    "autovacuum_vacuum_cost_limit": "1000",
}
_HOT = {"fillfactor": "40", "autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "1000"}
_BURSTS = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "2000"}

PARAMETERS = {
    "wheel_timer": _LOG,
    "wheel_payload": _LOG,
    "wheel_outcome": _LOG,
    "wheel_batch": _LOG,
    "wheel_shard": _HOT,
    "wheel_lane": _HOT,
    "wheel_tally": {**_HOT, "fillfactor": "70"},
    "wheel_inbox": _BURSTS,
}


def set_parameters(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    for table, parameters in PARAMETERS.items():
        settings = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        schema_editor.execute(f"ALTER TABLE {table} SET ({settings})")


class Migration(migrations.Migration):
    dependencies = [("django_wheel", "0001_initial")]

    operations = [migrations.RunPython(set_parameters, migrations.RunPython.noop)]
