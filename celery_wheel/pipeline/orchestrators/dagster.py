"""``wheel_job_asset``: the result of a job of the pipeline as an asset of Dagster (docs/orchestration.md).

Dagster reads the annotation of a context as an object, so this module has no ``from __future__ import annotations``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dagster import AssetExecutionContext, AssetsDefinition, Failure, MaterializeResult, MetadataValue, asset

from celery_wheel.pipeline.orchestrators import COMMAND, JobFailed, JobProcess


def wheel_job_asset(
    job: str,
    arguments: Sequence[str] = (),
    *,
    name: str | None = None,
    command: Sequence[str] = COMMAND,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> AssetsDefinition:
    """Return an asset that a job materialises; the summary of the job is its metadata.

    Findings fail the run for good; any other failure may be tried again, by a ``retry_policy``.

    Args:
        job, arguments, command, environment: of ``JobProcess``.
        name: of the asset; default: ``wheel_`` and the job.
        options: of ``dagster.asset``, like ``deps`` and ``retry_policy``.
    """

    @asset(name=name or f"wheel_{job}", kinds={"spark"}, **options)
    def materialise(context: AssetExecutionContext) -> MaterializeResult[Any]:
        try:
            summary = JobProcess(job, arguments, command=command, environment=environment).run(context.log.info)
        except JobFailed as error:
            if error.summary is None:
                raise
            raise Failure(str(error), metadata=_metadata(error.summary), allow_retries=False) from error
        return MaterializeResult(metadata=_metadata(summary))

    return materialise


def _metadata(summary: Mapping[str, Any]) -> dict[str, Any]:
    words = MetadataValue.md("\n".join(f"- {line}" for line in summary["words"]))
    return {"summary": words, "facts": MetadataValue.json({**summary, "words": None})}
