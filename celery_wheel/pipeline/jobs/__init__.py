"""The jobs: what each is called, and in one line what it is for. A module each.

::

    NAME, HELP          as in JOBS
    OPTIONS             click's options of the job, as decorators; what all have is in ``outer``
    run(spark, given, tell) -> Summary
                        the outer part: reads, writes, draws; ``tell`` is the progress line
    everything else     functions from DataFrame to DataFrame, without I/O: yours to use in programs

Only names here: a job's module, and Spark with it, is imported when it is asked for.
"""

from __future__ import annotations

#: The order is that of the help.
JOBS: dict[str, str] = {
    "schedule": "Schedule the rows of a file, a table or a query in bulk: all of them, or none.",
    "archive": "History as Parquet, a folder a day; each event once, before retention forgets it.",
    "tail": "History into Parquet as it comes: each event once, whatever is killed.",
    "lateness": "How late tasks left: by task, queue and hour, against objectives.",
    "forecast": "What is going to be due: by second and minute, herds, and how long queues take to drain.",
    "tune": "Which tick and wheel size suit the tasks that there are.",
    "reconcile": "The auditor: scheduled against dispatched against executed.",
}
