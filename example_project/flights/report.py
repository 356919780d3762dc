"""The report of a year of flights: its figures, and whether it is faultless. Plain values only."""

from dataclasses import dataclass

from flights.summary import ReplaySummary


@dataclass(frozen=True, slots=True)
class YearReport:
    scheduled: int  #: by the two loads, in this run
    repeated: int  #: by a second run of the day's load: 0
    rejected: int
    gap_or_fold: int  #: rejected because the local time does not exist or occurs twice
    accepted: int
    dispatched: int
    misplaced: int  #: not pending at the expected instant
    day: ReplaySummary  #: the reminders
    herds: int
    findings: int  #: of the auditor

    @property
    def faultless(self) -> bool:
        return self.day.faultless and self.day.waiting == self.repeated == self.misplaced == self.findings == 0

    def lines(self) -> list[str]:
        """Return the figures for people, one on each line."""
        day = self.day
        figures = {
            "scheduled": self.scheduled,
            "rejected": self.rejected,
            "gap or fold": self.gap_or_fold,
            "accepted": self.accepted,
            "dispatched": self.dispatched,
            "executed": day.executed,
            "lost": day.lost,
            "duplicated": day.duplicated,
            "early": day.early,
            "herds found": self.herds,
            "findings": self.findings,
        }
        lateness = {"p50": day.lateness_p50_ms, "p99": day.lateness_p99_ms, "max": day.lateness_max_ms}
        lines = [f"{name:<12} {figure:>9,}" for name, figure in figures.items()]
        return lines + [f"lateness {name} {'-' if ms is None else f'{ms:,}':>9} ms" for name, ms in lateness.items()]
