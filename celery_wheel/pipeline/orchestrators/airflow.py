"""``WheelJobOperator``: a job of the pipeline as a task of Airflow 3; docs/orchestration.md has an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from celery_wheel.pipeline.orchestrators import COMMAND, JobFailed, JobProcess


class WheelJobOperator(BaseOperator):
    """Runs a job; the XCom is its summary. Findings fail the task for good; any other failure may be tried again.

    Args:
        job, arguments, command, environment: of ``JobProcess``; all of them may have Jinja templates.
    """

    template_fields = ("job", "arguments", "command", "environment")

    def __init__(
        self,
        *,
        job: str,
        arguments: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.job = job
        self.arguments = [*arguments]
        self.command = [*command]
        self.environment = dict(environment or {})
        self._running: JobProcess | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        self._running = JobProcess(self.job, self.arguments, command=self.command, environment=self.environment)
        try:
            return self._running.run(self.log.info)
        except JobFailed as error:
            if error.summary is not None:
                raise AirflowFailException(str(error)) from error
            raise

    def on_kill(self) -> None:
        if self._running is not None:
            self._running.stop()
