"""Two descriptions of the tables, SQLAlchemy's and Django's migrations, make the same tables on both databases."""

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from django.db import connections
from sqlalchemy import create_engine, inspect, text

from celery_wheel.errors import SettingError
from celery_wheel.store import open_store
from celery_wheel.store.sql.schema import metadata
from tests.kit.holder import NOW, Holder
from tests.kit.site.running import manage, migrated


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/site.sqlite3"
    url: str = request.getfixturevalue("postgres").new_database()
    return url


#: Prints the rows of a table by Django's own model.
COUNT = "from django_wheel.models import TimerRow; print('rows', TimerRow.objects.count())"


def opening(folder: Path, database: str, more: str = "") -> CompletedProcess[str]:
    """Open the store of the site in a process of its own, and close it."""
    program = f"from celery_wheel.store import open_store; open_store('django://default'{more}).close()"
    return manage(folder, database, "shell", "-c", program)


def tables(url: str) -> list[str]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        return inspect(engine).get_table_names()
    finally:
        engine.dispose()


def described(url: str) -> dict[str, Any]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.connect() as connection:
            look = _postgresql if engine.dialect.name == "postgresql" else _sqlite
            return {table: look(connection, table) for table in metadata.tables}
    finally:
        engine.dispose()


def _sqlite(connection: Any, table: str) -> dict[str, Any]:
    """Return column types as SQLite reads them, by affinity; of a key, INTEGER has to be the literal word."""
    columns = connection.execute(text(f"PRAGMA table_info({table})")).all()
    indexes = inspect(connection)
    created = connection.scalar(text("SELECT sql FROM sqlite_master WHERE name = :name"), {"name": table})
    return {
        "columns": [(name, _affinity(type_), bool(notnull or key), key) for _, name, type_, notnull, _, key in columns],
        "row id": [type_.upper() for _, _, type_, _, _, key in columns if key],
        "autoincrement": "AUTOINCREMENT" in created.upper(),
        "indexes": sorted((one["name"], one["column_names"]) for one in indexes.get_indexes(table)),
        "unique": sorted((one["name"], one["column_names"]) for one in indexes.get_unique_constraints(table)),
    }


def _affinity(type_: str) -> str:
    """https://www.sqlite.org/datatype3.html, 3.1"""
    type_ = type_.upper()
    words = (("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"))
    return next((affinity for word, affinity in words if word in type_), "NUMERIC")


def _postgresql(connection: Any, table: str) -> dict[str, Any]:
    where = {"table": table}
    columns = text("""
        SELECT attname, format_type(atttypid, atttypmod), attnotnull, attidentity, pg_get_expr(adbin, adrelid),
               col_description(attrelid, attnum)
        FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = to_regclass(:table) AND attnum > 0 ORDER BY attnum
    """)
    indexes = text("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = :table ORDER BY indexname")
    constraints = text("""
        SELECT contype::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = to_regclass(:table)
        ORDER BY 1, 2
    """)
    options = text("SELECT unnest(reloptions) FROM pg_class WHERE oid = to_regclass(:table) ORDER BY 1")
    return {
        "columns": [tuple(row) for row in connection.execute(columns, where)],
        "indexes": [tuple(row) for row in connection.execute(indexes, where)],
        "constraints": [tuple(row) for row in connection.execute(constraints, where)],
        "options": [row[0] for row in connection.execute(options, where)],
    }


def test_both_descriptions_make_the_same_tables(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    other = (
        f"sqlite:///{tmp_path}/other.sqlite3"
        if database.startswith("sqlite")
        else request.getfixturevalue("postgres").new_database()
    )
    open_store(other).close()
    by_django, by_store = described(migrated(tmp_path, database)), described(other)
    for table, wanted in by_store.items():
        assert by_django[table] == wanted, table


def test_migrations_are_complete(tmp_path: Path) -> None:
    done = manage(tmp_path, "sqlite", "makemigrations", "--check", "--dry-run", "django_wheel", cold=True)
    assert done.returncode == 0, done.stdout


def test_a_store_in_djangos_database_is_used_like_any_other(database: str, tmp_path: Path) -> None:
    migrated(tmp_path, database)
    done = opening(tmp_path, database, ", shards=2")
    assert done.returncode == 0, done.stderr
    store = open_store(database, shards=2, create=False)
    Holder(store).accept(NOW)
    store.close()
    counted = manage(tmp_path, database, "shell", "-c", COUNT)
    assert "rows 1" in counted.stdout, counted.stderr


@pytest.mark.slow
def test_the_error_of_a_store_that_is_not_migrated_names_the_command(database: str, tmp_path: Path) -> None:
    assert "run: python manage.py migrate django_wheel --database=default" in opening(tmp_path, database).stderr
    check = manage(tmp_path, database, "wheel_migrate_check")
    assert (check.returncode, "Run: python manage.py migrate django_wheel" in check.stderr) == (2, True), check.stderr
    migrated(tmp_path, database)
    check = manage(tmp_path, database, "wheel_migrate_check")
    assert (check.returncode, "was never used" in check.stdout) == (0, True), check.stderr
    manage(tmp_path, database, "migrate", "django_wheel", "zero")
    check = manage(tmp_path, database, "wheel_migrate_check")
    remedy = "Run: python manage.py migrate django_wheel --database=default\n"
    assert (check.returncode, check.stderr.endswith(remedy)) == (2, True), check.stderr
    migrated(tmp_path, database)
    opening(tmp_path, database)
    check = manage(tmp_path, database, "wheel_migrate_check")
    assert (check.returncode, "no migration is missing" in check.stdout) == (0, True), check.stderr


@pytest.mark.slow
def test_the_error_of_tables_of_another_version_names_the_command(database: str, tmp_path: Path) -> None:
    migrated(tmp_path, database)
    opening(tmp_path, database)
    age = "from django_wheel.models import MetaRow; MetaRow.objects.update(schema_version=0)"
    assert manage(tmp_path, database, "shell", "-c", age).returncode == 0
    check = manage(tmp_path, database, "wheel_migrate_check")
    assert check.returncode == 2
    assert "was made by an older celery-wheel" in check.stderr


@pytest.mark.slow
def test_a_used_project_that_moves_its_store_into_django_reads_the_way_out_first(database: str, tmp_path: Path) -> None:
    """Django has recorded the migrations by then, so ``migrate`` alone has nothing to apply."""
    migrated(tmp_path, database, SITE_STORE=f"sqlite:///{tmp_path}/wheel.sqlite3")
    forget = "python manage.py migrate django_wheel zero --fake --database=default"
    make = "python manage.py migrate django_wheel --database=default"
    assert f"has no tables of a store; run: {forget}; then: {make}\n" in opening(tmp_path, database).stderr
    idle = manage(tmp_path, database, "migrate")
    assert "No migrations to apply" in idle.stdout
    assert "django_wheel.W014" in idle.stderr
    assert f"Run: {forget}; then: {make}\n" in idle.stderr
    for command in (forget, make):
        done = manage(tmp_path, database, *command.split()[2:])
        assert done.returncode == 0, done.stderr
    after = manage(tmp_path, database, "migrate")
    assert (after.returncode, "W014" in after.stderr) == (0, False)
    opened = opening(tmp_path, database)
    assert opened.returncode == 0, opened.stderr


@pytest.mark.slow
def test_tables_are_made_nowhere_while_the_store_is_a_file_of_its_own(database: str, tmp_path: Path) -> None:
    own = f"sqlite:///{tmp_path}/wheel.sqlite3"
    migrated(tmp_path, database, SITE_STORE=own)
    names = tables(database)
    assert "auth_user" in names
    assert not [name for name in names if name.startswith("wheel_")]
    asked = manage(tmp_path, database, "shell", "-c", COUNT, SITE_STORE=own)
    assert "the wheel's tables are in no entry of DATABASES" in asked.stderr
    # Django has recorded the migrations as done; an operator who moves the store here gets an instruction.
    check = manage(tmp_path, database, "wheel_migrate_check")
    assert check.returncode == 2
    for command in check.stderr.partition("Run: ")[2].strip().split("; then: "):
        done = manage(tmp_path, database, *command.split()[2:])
        assert done.returncode == 0, done.stderr
    assert "was never used" in manage(tmp_path, database, "wheel_migrate_check").stdout


@pytest.mark.parametrize("own", [False, True], ids=["in Django", "own"])
def test_a_first_deployment_may_check_before_a_scheduler_starts(database: str, tmp_path: Path, own: bool) -> None:
    """Otherwise a deployment that runs the checks first could never start its first scheduler."""
    more = {}
    if own:
        more["SITE_STORE"] = f"sqlite:///{tmp_path}/own.sqlite3" if database.startswith("sqlite") else database
    migrated(tmp_path, database, **more)
    check = manage(tmp_path, database, "check", "--deploy", "--tag", "celery_wheel", **more)
    assert (check.returncode, "django_wheel.I012" in check.stderr) == (0, True), check.stderr
    check = manage(tmp_path, database, "wheel_migrate_check", **more)
    assert (check.returncode, "no migration is missing; " in check.stdout) == (0, True), check.stderr
    assert "when it starts: celery -A proj beat -S wheel" in check.stdout


def test_django_drops_the_tables_of_a_project_that_leaves(database: str, tmp_path: Path) -> None:
    migrated(tmp_path, database)
    done = manage(tmp_path, database, "migrate", "django_wheel", "zero", "--database=default")
    assert done.returncode == 0, done.stderr
    names = tables(database)
    assert [name for name in names if name.startswith("wheel_")] == []
    assert "auth_user" in names


def test_migrating_sqlite_prints_no_warning_about_comments(tmp_path: Path) -> None:
    done = manage(tmp_path, "sqlite", "migrate", "--verbosity", "0", cold=True)
    assert (done.returncode, "W163" in done.stderr) == (0, False), done.stderr


def test_a_router_of_one_database_does_not_stop_the_migration_of_our_tables(database: str, tmp_path: Path) -> None:
    done = manage(tmp_path, database, "migrate", "--verbosity", "0", SITE_ROUTER="tests.kit.site.routers.Keep")
    assert done.returncode == 0, done.stderr
    check = manage(tmp_path, database, "wheel_migrate_check", SITE_ROUTER="tests.kit.site.routers.Keep")
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize(
    ("alias", "vendor", "says"),
    [
        ("default", "sqlite", r"other processes can read, got django://default, which is in memory"),
        ("default", "mysql", r"must name a SQLite or PostgreSQL database, got django://default \(mysql\)"),
        ("other", "sqlite", "must name an entry of DATABASES, got django://other"),
    ],
    ids=["in memory", "of another kind", "missing"],
)
def test_an_unusable_database_is_refused(monkeypatch: pytest.MonkeyPatch, alias: str, vendor: str, says: str) -> None:
    monkeypatch.setattr(connections["default"], "vendor", vendor, raising=False)
    monkeypatch.setattr(connections["default"], "is_in_memory_db", lambda: True, raising=False)
    with pytest.raises(SettingError, match=says):
        open_store(f"django://{alias}")


def test_a_new_file_of_django_gets_a_log(tmp_path: Path) -> None:
    """Readers must not delay the scheduler: that needs SQLite's write-ahead log, which Django does not switch on."""
    database = migrated(tmp_path, f"sqlite:///{tmp_path}/site.sqlite3")
    opening(tmp_path, database)
    engine = create_engine(database)
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
    engine.dispose()
