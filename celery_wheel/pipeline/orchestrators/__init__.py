"""Jobs of the pipeline as tasks of Airflow and as assets of Dagster.

::

    airflow.WheelJobOperator ─┐
    dagster.wheel_job_asset ──┴─► JobProcess ─► celery-wheel-pipeline JOB --json      a process of its own
                                     │              stderr, line by line ─► the log of the task
                                     └───────────── stdout ─► the job's summary ─► XCom, metadata of the asset

The process may belong to another Python than the orchestrator's, or be a ``spark-submit``: the environment of the
orchestrator needs celery-wheel without its extra, and neither Spark nor Java.

Promises: a job that found something (``reconcile``) fails for good, and a job that could not run fails so that the
orchestrator tries it again; a task that is stopped stops its job, as Ctrl-C does. A repeated job is safe: each of them
resumes, or begins anew.
Non-promises: nothing here plans when a job runs.

The modules ``airflow`` and ``dagster`` import the package of their name; nothing else imports either.
"""
