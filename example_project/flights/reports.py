"""The airline's recurring reports, as schedules of the wheel.

::

    nightly/New York      01:30 by the wall clocks of three cities, within the compressed day
    nightly/Los Angeles
    nightly/Honolulu
    fleet/positions       every 2 s, and a run takes 3 s: instants during a run are skipped
    audit/month           the first of each month; paused

On 2013-11-03 the clocks go back from 02:00 to 01:00: 01:30 occurs twice in New York and in Los Angeles, and once in
Honolulu, which has no summer time. On 2013-03-10 they go forward from 02:00 to 03:00, and 01:30 occurs once.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from celery_wheel.recurring import Crontab, Instants
from celery_wheel.requests.schedules.definitions import ScheduleHistory
from django_wheel.project import project_wheel
from flights import tasks
from flights.plan import ReplayPlan

OFFICES = {
    "New York": "America/New_York",
    "Los Angeles": "America/Los_Angeles",
    "Honolulu": "Pacific/Honolulu",
}
POSITIONS, AUDIT = "fleet/positions", "audit/month"
POSITIONS_EVERY_S, POSITIONS_TIMES = 2, 20
NOTE = "The auditors are on leave."


class Reports:
    """The schedules of one replay."""

    def __init__(self, plan: ReplayPlan, began_ms: int) -> None:
        self._began = datetime.fromtimestamp(began_ms / 1_000, UTC)
        self._nights = {f"nightly/{office}": plan.nights(zone) for office, zone in OFFICES.items()}
        self._zones = {f"nightly/{office}": ZoneInfo(zone) for office, zone in OFFICES.items()}

    def create(self) -> None:
        """Create the schedules, or replace those of an earlier replay."""
        schedules = project_wheel().schedules
        for name, instants in self._nights.items():
            office = name.partition("/")[2]
            schedules.create(name, Instants(tuple(instants)), tasks.send_report, args=[office], exists="update")
        schedules.delete(POSITIONS)  # an earlier replay has paused it and used its number of runs
        schedules.create(POSITIONS, POSITIONS_EVERY_S, tasks.note_positions, overlap="skip", times=POSITIONS_TIMES)
        schedules.create(AUDIT, Crontab("0", "1", day_of_month="1"), tasks.send_report, args=["audit"], exists="update")
        schedules.pause(AUDIT, NOTE)

    def end(self) -> None:
        """Pause the schedule that recurs by the clock of this machine."""
        project_wheel().schedules.pause(POSITIONS, "The day is over.")

    def dispatched(self) -> int:
        """Return how many runs were dispatched since the replay began."""
        return sum(len(self._runs(self._history(name))) for name in (*self._nights, POSITIONS, AUDIT))

    def lines(self) -> Iterator[str]:
        """Yield a line for each schedule, for people."""
        for name, instants in self._nights.items():
            ran = self._runs(self._history(name))
            times = ", ".join(f"{local(at_ms, self._zones[name])}" for at_ms in instants.values())
            yield f"  {name:<20} {len(ran)} of {len(instants)} ran: {times}"
        history = self._history(POSITIONS)
        skipped = sum(one.count for one in history.skips if one.first >= self._began)
        yield f"  {POSITIONS:<20} {len(self._runs(history))} ran, {skipped} were skipped during a run"
        audit = project_wheel().schedules.get(AUDIT)
        yield f"  {AUDIT:<20} {f'paused: {audit.note}' if audit is not None and audit.paused else 'not paused'}"

    def _history(self, name: str) -> ScheduleHistory:
        return project_wheel().schedules.history(name) or ScheduleHistory(None, [], [], [])

    def _runs(self, history: ScheduleHistory) -> list[datetime]:
        return [one.dispatched_at for one in history.runs if one.dispatched_at and one.dispatched_at >= self._began]


def local(at_ms: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, zone).strftime("%Y-%m-%d %H:%M %Z")
