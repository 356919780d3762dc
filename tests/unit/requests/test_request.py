"""Requests to several shards, one of which is silent; an invalid argument raises an error before one is sent."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.errors import ArgumentError, RequestInDoubt, StoreError, WheelUnavailable
from celery_wheel.requests import request as requests
from celery_wheel.requests.answers import Answers, OpenStore
from celery_wheel.requests.request import TASKS_AT_ONCE, Request
from celery_wheel.requests.results import BestResult, CommandResult, CompletionResult, EveryShard, SummedCounts
from celery_wheel.store import open_store
from celery_wheel.store.model import Answer, Change
from celery_wheel.store.sql.store import SqlStore
from tests.kit.new_stores import new_file
from tests.kit.patience import patience

Turn = Callable[[], None]


def answering(store: SqlStore, *results: str | None) -> Turn:
    """Return a turn of the holders of shards 0, 1, …, each of which answers every command with its result, or not."""
    epochs = {shard: store.acquire(shard, "one", 0, 10_000) for shard, result in enumerate(results) if result}

    def turn() -> None:
        for shard, epoch in epochs.items():
            for item in store.read_inbox(shard, 10):
                command: dict[str, Any] = json.loads(item.payload)
                names = command.get("gates") or command.get("clocks") or command["task_ids"]
                answer = Answer(command["id"], dict.fromkeys(names, results[shard]), 0)
                store.apply(shard, epoch, Change(inbox=[item.id], answers=[answer]))

    return turn


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with closing(open_store(new_file(tmp_path / "wheel.sqlite3", shards=2), shards=2)) as opened:
        yield opened


def left(store: SqlStore) -> list[Any]:
    return [*store.read_inbox(0, 10), *store.read_inbox(1, 10)]


def ask(
    store: SqlStore,
    names: list[str],
    timeout_s: float,
    turn: Turn | None = lambda: None,  # an asker without a holder
    kind: str = "cancel",
    opening: Callable[[], OpenStore] | None = None,
) -> dict[str, Any]:
    opened = OpenStore("", store)
    request = Request(opening or (lambda: opened), kind, names, {}, timeout_s, turn=turn)
    request.send()
    return request.receive()


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["pause", "resume"])
def test_a_gate_is_in_doubt_until_every_shard_has_answered(store: SqlStore, kind: str) -> None:
    """A queue that only one shard pauses is still served by the other."""
    with pytest.raises(WheelUnavailable, match="no scheduler answered for shard 1") as raised:
        ask(store, ["queue:mail"], 0.05, answering(store, "done"), kind)
    assert raised.value.results == {}
    assert left(store) == []


def test_the_answer_of_one_shard_stays_where_another_is_silent(store: SqlStore) -> None:
    """The shard that does not know a task has a tombstone of it by then, so it is not true that nothing happens."""
    with pytest.raises(WheelUnavailable, match="shard 0 has answered, and what it did stays: send") as raised:
        ask(store, ["a"], 0.05, answering(store, "unknown"))
    assert (raised.value.shards, raised.value.results) == ((1,), {})
    with pytest.raises(WheelUnavailable, match="nothing will happen there; start a scheduler") as raised:
        ask(store, ["a"], 0.05)
    assert raised.value.shards == (0, 1)


def test_the_most_urgent_answer_of_several_clocks_counts(store: SqlStore) -> None:
    both = answering(store, "accepted", "refused")
    assert ask(store, ["wall"], patience(), both, "accept_clock") == {"wall": "refused"}
    with pytest.raises(WheelUnavailable, match="no scheduler answered for shard 0, 1"):
        ask(store, ["wall"], 0.05, kind="accept_clock")


def test_the_time_in_which_a_request_is_sent_is_part_of_its_time_out(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender waits for the lock of a SQLite file, for example."""
    put, waited, now = store.put_commands, [], [0.0]
    monkeypatch.setattr(requests.time, "monotonic", lambda: now[0])

    def slow(*commands: Any) -> list[int]:
        now[0] += 7
        return put(*commands)

    def wait(self: Answers, numbers: list[str], timeout_s: float, turn: object) -> dict[str, Any]:
        waited.append(timeout_s)
        now[0] += timeout_s + 0.001
        return {}

    store.put_commands = slow
    monkeypatch.setattr(Answers, "wait", wait)
    with pytest.raises(WheelUnavailable, match="within 10 s"):
        ask(store, ["a"], 10, None)
    assert waited == [3.0]


@pytest.mark.parametrize("moment", ["waiting", "committing"])
def test_a_request_is_withdrawn_when_its_asker_is_interrupted(store: Any, moment: str) -> None:
    if moment == "committing":
        put = store.put_commands
        store.put_commands = lambda *commands: interrupt(put(*commands))
    with pytest.raises(KeyboardInterrupt):
        ask(store, ["a"], 5, interrupt)
    assert left(store) == []


def test_a_request_of_which_only_a_part_was_sent_is_withdrawn(store: Any) -> None:
    put, names = store.put_commands, [str(n) for n in range(TASKS_AT_ONCE + 1)]

    def failing(*commands: Any) -> list[int]:
        if store.read_inbox(0, 10):
            raise StoreError("the disk is full")
        return put(*commands)

    store.put_commands = failing
    with pytest.raises(StoreError, match="the disk is full") as raised:
        ask(store, names, 5)
    assert raised.value.__notes__ == ["nothing of the request (cancel) will happen"]
    assert left(store) == []
    store.withdraw = failing
    with pytest.raises(RequestInDoubt) as doubt:
        ask(store, names, 0.05)
    assert str(doubt.value) == (
        "the request (cancel) may still be carried out in shard 0, 1, where it could not be withdrawn: the disk is "
        "full; check there before you send it again"
    )
    assert doubt.value.results == {}


def lose_answers(store: Any, *committed: bool) -> list[Any]:
    """Lose the answers to commits of commands, which reached the store or did not; return what was put, as it grows."""
    real, outcomes, puts = store.put_commands, iter(committed), []

    def put(commands: Any, items: list[int]) -> list[int]:
        puts.append(commands)
        numbers, outcome = real(commands, items), next(outcomes, None)
        if outcome is None:
            return numbers
        if not outcome:  # as the server that rolled it back
            for command, item in zip(commands, items, strict=True):
                assert store.withdraw(item, command)
        raise StoreError("the server closed the connection; the last change may be committed or not")

    store.put_commands = put
    return puts


@pytest.mark.parametrize("committed", [True, False])
def test_a_request_whose_commit_had_no_answer_has_a_result_all_the_same(store: Any, committed: bool) -> None:
    puts = lose_answers(store, committed, committed)
    assert ask(store, ["a"], patience(), answering(store, "unknown", "done")) == {"a": CommandResult.DONE}
    assert len(puts) == 3
    assert left(store) == []


def test_a_request_that_was_carried_out_before_its_sender_looked_is_not_sent_again(store: Any) -> None:
    puts, withdraw, turn = lose_answers(store, True), store.withdraw, answering(store, "unknown", "done")
    store.withdraw = lambda *item: (turn(), withdraw(*item))[1]
    assert ask(store, ["a"], patience()) == {"a": CommandResult.DONE}
    assert len(puts) == 1


def test_a_request_whose_commit_had_no_answer_until_its_time_out_is_not_carried_out(store: Any) -> None:
    lose_answers(store, True)
    with pytest.raises(StoreError, match="the server closed the connection") as raised:
        ask(store, ["a"], 0)
    assert raised.value.__notes__ == ["nothing of the request (cancel) will happen"]
    assert left(store) == []


def test_the_certain_results_stay_where_a_shard_cannot_be_withdrawn_from(store: Any) -> None:
    withdraw = store.withdraw

    def failing(item: int, command: tuple[int, str, bytes]) -> bool:
        if command[0] == 1:
            raise StoreError("the server is away")
        return bool(withdraw(item, command))

    store.withdraw = failing
    with pytest.raises(RequestInDoubt, match=r"carried out in shard 1, where .*: the server is away") as raised:
        ask(store, ["a", "b"], 0.05, kind="complete")
    assert raised.value.results == {}
    assert store.read_inbox(0, 10) == []
    certain = ask(store, ["a"], 0.05, answering(store, "done"))
    assert certain == {"a": CommandResult.DONE}, "no answer of shard 1 can change it"
    epoch = store.acquire(0, "two", 10**15, 10_000)

    def one_of_two() -> None:
        for item in store.read_inbox(0, 10):
            answer = Answer(json.loads(item.payload)["id"], {"a": "done", "b": "unknown"}, 0)
            store.apply(0, epoch, Change(inbox=[item.id], answers=[answer]))

    with pytest.raises(RequestInDoubt) as raised:
        ask(store, ["a", "b"], 0.05, one_of_two)
    assert raised.value.results == {"a": CommandResult.DONE}


def test_a_withdrawal_is_tried_again_while_the_store_is_away(store: Any) -> None:
    """The second one has taken effect: only its answer was lost."""
    withdraw, tries = store.withdraw, []

    def failing(item: int, command: tuple[int, str, bytes]) -> bool:
        tries.append(item)
        if tries.count(item) == 2:
            assert withdraw(item, command)
        if tries.count(item) < 3:
            raise StoreError("the server is away")
        return bool(withdraw(item, command))

    store.withdraw = failing
    with pytest.raises(WheelUnavailable, match="no scheduler answered for shard 0, 1 within"):
        ask(store, ["a"], patience(1))
    assert left(store) == []


def test_a_store_that_is_away_while_the_answer_is_awaited_changes_nothing(store: SqlStore) -> None:
    opened, calls = OpenStore("", store), []

    def open_store_late() -> OpenStore:
        calls.append(1)
        if len(calls) in (2, 3):
            raise StoreError("the server is away")
        return opened

    found = ask(store, ["a"], patience(), answering(store, "done", "done"), opening=open_store_late)
    assert found == {"a": CommandResult.DONE}


def test_a_command_that_the_holder_could_not_read_is_named(store: SqlStore) -> None:
    epoch = store.acquire(0, "one", 0, 10_000)

    def reject() -> None:
        store.apply(0, epoch, Change(inbox=[item.id for item in store.read_inbox(0, 10)]))

    with pytest.raises(RequestInDoubt, match="shard 0 has accepted the command pause and has not answered it"):
        ask(store, ["queue:mail"], 0.05, reject, "pause")


@pytest.mark.parametrize(
    ("answers", "best"),
    [
        ([], "unknown"),
        (["unknown", "too_late"], "too_late"),
        (["already", "too_late"], "already"),
        (["already", "done", "unknown"], "done"),
    ],
)
def test_the_best_result_of_a_task_counts(answers: list[str], best: str) -> None:
    assert BestResult().merged(["a"], [{"a": one} for one in answers]) == {"a": CommandResult(best)}


def test_done_and_already_are_certain_though_a_shard_is_silent() -> None:
    found = {one.value: one for one in CommandResult}
    assert BestResult().in_doubt(found, set(found)) == {"unknown", "too_late"}
    assert EveryShard().in_doubt(found, set(found)) == set(found)


def test_counts_of_the_shards_that_answered_are_added_up() -> None:
    sums = SummedCounts()
    found = sums.merged(["a", "b"], [{"a": {"done": 1, "too_late": 0}}, {"a": {"done": 2, "too_late": 1}}])
    assert found == {"a": CompletionResult(3, 1), "b": CompletionResult(0, 0)}
    assert sums.certain(found, {"a", "b"}) == {"a": CompletionResult(3, 1)}


#: Each of these texts is refused by some store.
BAD = ["", "a\0b", "\ud800", "x" * 513, "ü" * 513]


@pytest.fixture
def wheel() -> Any:
    return Celery("control", broker="redis://127.0.0.1:1/0", set_as_current=False).wheel


@pytest.mark.parametrize("task", [None, 42, b"a", [b"a"], ["a", None]])
def test_a_task_is_an_id_or_a_result(wheel: Any, task: Any) -> None:
    for verb in (wheel.cancel, wheel.run_now, wheel.requeue):
        with pytest.raises(TypeError, match=r"^a task must be its id or its AsyncResult, got "):
            verb(task)


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_no_store_can_hold_is_refused(wheel: Any, text: str) -> None:
    """The test has no store, so sending a request would raise a StoreError."""
    refused = [
        ("task id", lambda: wheel.cancel(text)),
        ("task id", lambda: wheel.reschedule(["a", text], countdown=1)),
        ("a key", lambda: wheel.complete(["a", text])),
    ]
    if text:
        refused += [
            ("queue", lambda: wheel.pause(queue=text)),
            ("task", lambda: wheel.resume(task=text)),
            ("reason", lambda: wheel.cancel("a", reason=text)),
            ("actor", lambda: wheel.pause(everything=True, actor=text)),
        ]
    for name, call in refused:
        with pytest.raises(ArgumentError, match=f"^{name} must be .*, got "):
            call()


WRONG: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a key must be a text, got ": (lambda wheel, one: wheel.complete(one), [42, None, b"a", [b"a"]], []),
    r"rows must be numbers of rows \(Task\.id\), got ": (
        lambda wheel, one: wheel.replay([one]),
        ["7", -1, True, 10**18],
        [],
    ),
    "timeout must be ": (lambda wheel, one: wheel.cancel("a", timeout=one), ["10", None], [-1]),
    "over must be ": (lambda wheel, one: wheel.resume(queue="mail", over=one), ["10m", True], [-1, 10**9]),  # a year
}


@pytest.mark.parametrize("message", WRONG)
def test_a_value_of_another_type_or_out_of_its_range_is_refused(wheel: Any, message: str) -> None:
    call, of_another_type, out_of_range = WRONG[message]
    for error, values in ((TypeError, of_another_type), (ArgumentError, out_of_range)):
        for value in values:
            with pytest.raises(error, match=f"^{message}"):
                call(wheel, value)


@pytest.mark.parametrize("scope", ["queue", "task"])
@pytest.mark.parametrize("name", [None, ""])
def test_an_empty_name_does_not_stand_for_everything(wheel: Any, scope: str, name: Any) -> None:
    for verb in (wheel.pause, wheel.resume):
        with pytest.raises(TypeError, match=f" must have a name as its {scope}, got .*; nothing was changed"):
            verb(**{scope: name})


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ({}, "one of queue, task, group and everything=True, got none"),
        ({"queue": "mail", "task": "app.remind"}, "one of queue, task, group and everything=True, got queue and task"),
        (
            {"queue": "mail", "everything": True},
            "one of queue, task, group and everything=True, got queue and everything",
        ),
        ({"everything": False}, "everything=True, got False"),
    ],
)
def test_a_gate_names_exactly_one_thing_and_everything_only_in_words(
    wheel: Any, which: dict[str, Any], said: str
) -> None:
    for verb in (wheel.pause, wheel.resume):
        with pytest.raises(TypeError, match=f" must have {said}; nothing was changed"):
            verb(**which)


def test_a_request_that_takes_effect_at_once_is_part_of_no_transaction(wheel: Any) -> None:
    calls: dict[str, Any] = {
        "replay": lambda: wheel.replay([7], transactional=True),
        "complete": lambda: wheel.complete("a", transactional=True),
        "pause": lambda: wheel.pause(everything=True, transactional=True),
        "resume": lambda: wheel.resume(everything=True, transactional=True),
        "accept_clock": lambda: wheel.accept_clock(transactional=True),
    }
    for kind, call in calls.items():
        with pytest.raises(TypeError, match=f"^{kind} must be without the option transactional"):
            call()


def test_a_misspelt_kind_of_outcome_is_refused(wheel: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^kind must be one of rejected, .*, got 'rejectd'$"):
        wheel.outcomes("rejected", "rejectd")
