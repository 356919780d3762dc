"""A task with ``once``: its changes are committed once for each try, and each copy returns the same result."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from celery.exceptions import Retry
from kombu.exceptions import EncodeError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from celery_wheel import Batches, Celery, once, once_table
from celery_wheel.errors import SettingError, WheelError
from celery_wheel.worker.once import SqlLedger, once_in
from tests.kit.patience import PATIENCE_S

META = sa.MetaData()
ONCE = once_table(META)
PAID = sa.Table("paid", META, sa.Column("what", sa.Text))


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    if request.param == "sqlite":
        url = sa.make_url(f"sqlite:///{tmp_path}/shop.sqlite3")
    else:
        url = sa.make_url(request.getfixturevalue("postgres").new_database())
        url = url.set(drivername="postgresql+psycopg")
    made = sa.create_engine(url)
    META.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def new_engine(tmp_path: Path) -> Iterator[Callable[..., sa.Engine]]:
    """Make engines of one SQLite file, whose connections end with the test: Python 3.13 tells of each that does not."""
    with ExitStack() as engines:

        def new(**options: Any) -> sa.Engine:
            made = sa.create_engine(f"sqlite:///{tmp_path}/shop.sqlite3", **options)
            engines.callback(made.dispose)
            return made

        yield new


@pytest.fixture
def app() -> Iterator[Any]:
    with Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False) as made:
        made.conf.task_default_queue = "once"  # in the memory of the process, which other tests read
        yield made


def paid(engine: sa.Engine) -> list[str]:
    with engine.begin() as connection:
        return list(connection.scalars(sa.select(PAID.c.what)))


def markers(engine: sa.Engine) -> int:
    with engine.begin() as connection:
        return int(connection.scalar(sa.select(sa.func.count()).select_from(ONCE)) or 0)


def pay_task(
    app: Any, engine: sa.Engine, then: Callable[[str], Any] = lambda what: {"paid": what}, name: str = "pay"
) -> Any:
    @app.task(name=name, shared=False, throws=(ZeroDivisionError,))
    @once(engine)
    def pay(what: str, *, connection: sa.Connection) -> Any:
        connection.execute(PAID.insert().values(what=what))
        return then(what)

    return pay


def test_a_second_copy_changes_nothing_and_returns_the_result_of_the_first(app: Any, engine: sa.Engine) -> None:
    pay = pay_task(app, engine)
    assert pay.apply(("a",), task_id="1").get() == {"paid": "a"}
    assert pay.apply(("a",), task_id="1").get() == {"paid": "a"}
    assert paid(engine) == ["a"]
    pay.apply(("b",), task_id="2").get()
    assert pay.apply(("a",), task_id="1", retries=1).get() == {"paid": "a"}, "the retry of a copy that failed"
    assert paid(engine) == ["a", "b"]
    assert pay("c") == {"paid": "c"} == pay("c")
    assert paid(engine)[2:] == ["c", "c"], "a plain call has no message, of which there could be two"
    assert markers(engine) == 2


def test_tasks_of_two_names_have_markers_of_their_own(app: Any, engine: sa.Engine) -> None:
    @app.task(name="cancel", shared=False)
    @once(engine)
    def cancel(what: str, *, connection: sa.Connection) -> None:
        connection.execute(PAID.insert().values(what=f"not {what}"))

    assert cancel.apply(("a",), task_id="1").get() is None
    pay_task(app, engine).apply(("a",), task_id="1").get()
    assert cancel.apply(("a",), task_id="1").get() is None
    assert paid(engine) == ["not a", "a"]


@pytest.mark.parametrize("error", [ZeroDivisionError("of the task"), Retry("later")], ids=["error", "retry"])
def test_a_try_that_failed_has_changed_nothing_and_is_run_again(app: Any, engine: sa.Engine, error: Exception) -> None:
    errors = [error]

    def then(what: str) -> str:
        if errors:
            raise errors.pop()
        return what

    pay = pay_task(app, engine, then)
    pay.apply(("a",), task_id="1")
    assert (paid(engine), markers(engine)) == ([], 0)
    assert pay.apply(("a",), task_id="1").get() == "a"
    assert paid(engine) == ["a"]


def test_a_commit_whose_answer_is_lost_is_looked_up(app: Any, engine: sa.Engine) -> None:
    """An error after the commit must not fail the task, whose retry would find it done all the same."""
    lost: list[str] = []

    class Losing(SqlLedger):
        @contextmanager
        def transaction(self) -> Iterator[Any]:
            with super().transaction() as given:
                yield given
            if lost and not lost[-1]:
                lost[-1] = "the answer"
                raise sa.exc.OperationalError("COMMIT", {}, OSError("the connection was lost"))

    @app.task(name="pay", shared=False, autoretry_for=(sa.exc.OperationalError,))
    @once_in(Losing(engine), timedelta(days=1))
    def pay(what: str, *, connection: sa.Connection) -> str:
        connection.execute(PAID.insert().values(what=what))
        lost.append("")
        return what

    assert pay.apply(("a",), task_id="1").get() == "a"
    assert (lost, paid(engine)) == (["the answer"], ["a"])


@pytest.mark.slow
def test_each_task_has_its_own_retention(app: Any, engine: sa.Engine) -> None:
    pay = pay_task(app, engine)
    pay.apply(("a",), task_id="1").get()

    @app.task(name="brief", shared=False)
    @once(engine, retention=timedelta(milliseconds=1))
    def brief(*, connection: sa.Connection) -> None: ...

    for number in range(400):
        brief.apply(task_id=f"{number}").get()
    assert pay.apply(("a",), task_id="1").get() == {"paid": "a"}
    assert paid(engine) == ["a"]


def test_results_that_celery_makes_into_others_and_results_that_nobody_asks_for(app: Any, engine: sa.Engine) -> None:
    results: list[Any] = [app.AsyncResult("7"), object()]
    pay = pay_task(app, engine, lambda _what: results[0])
    assert pay.apply(("a",), task_id="1").get().id == "7"
    assert pay.apply(("a",), task_id="1").get() == [["7", None], None]
    pay.ignore_result = True
    results.pop(0)
    assert pay.apply(("b",), task_id="2", ignore_result=True).state == "SUCCESS"
    assert pay.apply(("b",), task_id="2", ignore_result=True).state == "SUCCESS"
    assert paid(engine) == ["a", "b"]


def test_a_result_that_no_backend_could_store_fails_before_the_commit(app: Any, engine: sa.Engine) -> None:
    pay = pay_task(app, engine, lambda _what: object())
    with pytest.raises(EncodeError):
        pay.apply(("a",), task_id="1").get()
    assert (paid(engine), markers(engine)) == ([], 0)


def test_a_second_copy_at_the_same_time_waits_for_the_first(app: Any, engine: sa.Engine) -> None:
    began, go_on = threading.Event(), threading.Event()
    runs: list[str] = []

    def then(what: str) -> str:
        runs.append(what)
        began.set()
        assert go_on.wait(PATIENCE_S)
        return f"run {len(runs)}"

    pay, results = pay_task(app, engine, then), list[Any]()
    copies = [threading.Thread(target=lambda: results.append(pay.apply(("a",), task_id="1").get())) for _ in range(2)]
    copies[0].start()
    assert began.wait(PATIENCE_S)
    copies[1].start()
    go_on.set()
    for copy in copies:
        copy.join(PATIENCE_S)
    assert results == ["run 1", "run 1"]
    assert (runs, paid(engine)) == (["a"], ["a"])


def test_a_session_is_given_and_must_not_be_ended_by_the_task(app: Any, engine: sa.Engine) -> None:
    sessions = sessionmaker(engine)

    @app.task(name="pay", shared=False, bind=True)
    @once(sessions)
    def pay(self: Any, what: str, *, session: Session) -> str:
        session.execute(PAID.insert().values(what=what))
        return str(self.request.id)

    assert pay.apply(("a",), task_id="1").get() == pay.apply(("a",), task_id="1").get() == "1"
    assert paid(engine) == ["a"]

    @app.task(name="ends", shared=False, throws=(sa.exc.InvalidRequestError, WheelError))
    @once(sessions)
    def ends(*, session: Session) -> None:
        session.commit()

    with pytest.raises(sa.exc.InvalidRequestError):
        ends.apply(task_id="2").get()
    with pytest.raises(WheelError, match="the task has ended the transaction of once itself"):
        ends.apply(task_id="2").get()


def test_a_function_that_a_task_calls_is_no_task(app: Any, engine: sa.Engine) -> None:
    """Another task, or the task itself, may call it as often as it likes: each call changes the database."""
    with engine.begin() as connection:  # SQLite has one writer
        connection.execute(PAID.insert().values(what="begun"))
    pay = pay_task(app, engine)

    @app.task(name="pay all", shared=False)
    def pay_all(*what: str) -> list[Any]:
        return [pay(one) for one in what]

    assert pay_all.apply(("a", "b"), task_id="1").get() == [{"paid": "a"}, {"paid": "b"}]
    assert pay_all.apply(("a", "b"), task_id="1").get() == [{"paid": "a"}, {"paid": "b"}]
    assert (paid(engine), markers(engine)) == (["begun", "a", "b", "a", "b"], 0)
    if engine.dialect.name == "postgresql":  # each has a transaction of its own
        nested = pay_task(app, engine, name="nested")

        @app.task(name="twice", shared=False)
        @once(engine)
        def twice(what: str, *, connection: sa.Connection) -> list[Any]:
            return [nested(what), twice(f"{what}!") if not what.endswith("!") else None]

        for _ in range(2):
            assert twice.apply(("c",), task_id="2").get() == [{"paid": "c"}, [{"paid": "c!"}, None]]
        assert (paid(engine)[5:], markers(engine)) == (["c", "c!"], 1)


@pytest.mark.parametrize("decorated", ["autoretry", "a decorator between", "a class"])
def test_a_task_is_known_behind_what_wraps_it(app: Any, engine: sa.Engine, decorated: str) -> None:
    def book(*args: Any, connection: sa.Connection) -> str:
        connection.execute(PAID.insert().values(what=args[-1]))
        return "booked"

    if decorated == "a class":

        class Book(app.Task):  # type: ignore[name-defined, misc]
            name = "book"
            run = once(engine)(book)

        task = app.register_task(Book())
    elif decorated == "autoretry":
        task = app.task(once(engine)(book), name="book", bind=True, shared=False, autoretry_for=(LookupError,))
    else:
        made = once(engine)(book)
        task = app.task(wraps(made)(lambda *args: made(*args)), name="book", shared=False)
    assert [task.apply(("a",), task_id="1").get() for _ in range(2)] == ["booked"] * 2
    assert (paid(engine), markers(engine)) == (["a"], 1)


def test_old_markers_are_removed_and_others_stay(app: Any, engine: sa.Engine) -> None:
    pay = pay_task(app, engine)
    pay.apply(("a",), task_id="recent").get()
    with engine.begin() as connection:
        connection.execute(ONCE.insert(), [{"id": f"{number}", "until_ms": number} for number in range(1_500)])
    for number in range(1_000):  # by its id, one run of a hundred removes some
        pay.apply(("b",), task_id=f"{number}").get()
        if markers(engine) < 1_000:
            break
    assert markers(engine) == 502 + number
    assert pay.apply(("c",), task_id="recent").get() == {"paid": "a"}


def test_celery_checks_the_arguments_without_the_transaction(app: Any, engine: sa.Engine) -> None:
    pay = pay_task(app, engine)
    with pytest.raises(TypeError, match="what"):
        pay.apply_async(())
    pay.apply_async(("a",))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda app, engine: once(engine)(app.tasks["celery.chain"]), "once must be below @app.task"),
        (lambda _app, engine: once(engine)(lambda what: what), "the task must take the keyword 'connection'"),
        (
            lambda _app, engine: once(sessionmaker(engine))(lambda what: what),
            "the task must take the keyword 'session'",
        ),
        (lambda _app, engine: once(engine)(lambda connection: connection), "keyword 'connection' after a \\*"),
        (lambda _app, _: once(async_sessionmaker()), "an Engine or a sessionmaker"),
        (lambda _app, _: once(sessionmaker(class_=AsyncSession)), "of plain sessions, got one of AsyncSession"),
        (lambda _app, engine: once(engine.connect())(lambda what: what), "an Engine or a sessionmaker"),
        (lambda _app, engine: once(engine, retention=timedelta())(lambda what: what), "a positive timedelta"),
    ],
    ids=["order", "connection", "session", "positional", "async", "async sessions", "database", "retention"],
)
def test_a_wrong_use_is_refused_where_it_is_written(
    app: Any, new_engine: Callable[..., sa.Engine], make: Callable[[Any, sa.Engine], Any], error: str
) -> None:
    with pytest.raises((TypeError, SettingError), match=error):
        make(app, new_engine())


def test_a_coroutine_is_refused(new_engine: Callable[..., sa.Engine]) -> None:
    async def pay(*, connection: sa.Connection) -> None: ...

    with pytest.raises(TypeError, match="a function that ends in its transaction"):
        once(new_engine())(pay)


def test_it_is_refused_before_the_task_runs_where_it_cannot_hold(
    app: Any, new_engine: Callable[..., sa.Engine]
) -> None:
    runs = list[str]()

    def made(engine: sa.Engine, base: Any = None) -> Any:
        @app.task(name=f"t{len(app.tasks)}", base=base, shared=False, throws=(SettingError, TypeError))
        @once(engine)
        def task(what: str, *, connection: sa.Connection) -> None:
            runs.append(what)

        return task

    with pytest.raises(SettingError, match="must have the table celery_wheel_once, got none; nothing was run; make it"):
        made(new_engine()).apply(("a",)).get()
    META.create_all(new_engine())
    with pytest.raises(SettingError, match="got one that keeps what was rolled back, by autocommit"):
        made(new_engine(isolation_level="AUTOCOMMIT")).apply(("a",)).get()
    with pytest.raises(TypeError, match="whose base is Batches"):
        made(new_engine(), Batches).apply(("a",)).get()
    assert runs == []
