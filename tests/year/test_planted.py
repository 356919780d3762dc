"""The judges of the year find bugs that show with age alone, and find nothing without them."""

import pytest

from tests.kit.virtual_machine import Spin
from tests.year.judges import Violation
from tests.year.planted import FORTNIGHT, MONTH, ON_RABBITMQ, PLANTED, SHARED, SHORT, SPRING, Plant
from tests.year.world import Year


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_bug_of_age_is_found(plant: Plant) -> None:
    with plant() as options, pytest.raises((Violation, Spin)) as found:
        Year(**options).run()
    cause: BaseException | None = found.value
    while cause is not None:  # the year itself, or the planted bug, is broken
        assert not isinstance(cause, AttributeError | TypeError | NameError)
        cause = cause.__cause__


def test_at_least_twenty_bugs_are_planted() -> None:
    assert len(PLANTED) >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [FORTNIGHT, MONTH, SHORT, SPRING, SHARED, ON_RABBITMQ],
    ids=["fortnight", "month", "short", "spring", "shared", "on RabbitMQ"],
)
def test_a_sound_scheduler_has_none(options: dict[str, object]) -> None:
    Year(**options).run()  # type: ignore[arg-type]
