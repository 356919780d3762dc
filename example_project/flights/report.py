"""What is to be told at the end of a year of flights, and whether all is well. Plain values only."""

from dataclasses import dataclass

from flights.summary import Summary


@dataclass(frozen=True, slots=True)
class Report:
    scheduled: int  #: by the two loads, in this run
    again: int  #: by the same load once more: 0
    rejected: int
    unclear: int  #: of them, at a local time that is skipped or comes twice
    taken_in: int
    dispatched: int
    strays: int  #: that wait for another instant than was asked for
    day: Summary  #: of the reminders
    herds: int
    findings: int  #: of the auditor

    @property
    def faultless(self) -> bool:
        return self.day.faultless and self.day.waiting == self.again == self.strays == self.findings == 0

    def lines(self) -> list[str]:
        """For people, one figure a line."""
        day = self.day
        figures = {
            "scheduled": self.scheduled,
            "rejected": self.rejected,
            "gap or fold": self.unclear,
            "taken in": self.taken_in,
            "dispatched": self.dispatched,
            "executed": day.executed,
            "lost": day.lost,
            "twice": day.duplicated,
            "early": day.early,
            "herds found": self.herds,
            "findings": self.findings,
        }
        lateness = {"p50": day.lateness_p50_ms, "p99": day.lateness_p99_ms, "max": day.lateness_max_ms}
        told = [f"{name:<12} {figure:>9,}" for name, figure in figures.items()]
        return told + [f"lateness {name} {'-' if ms is None else f'{ms:,}':>9} ms" for name, ms in lateness.items()]
