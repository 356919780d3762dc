"""``python -m celery_wheel.pipeline``. A file of its own: Python and spark-submit find it by its name."""

from __future__ import annotations

from celery_wheel.pipeline.cli import main

main(prog_name="celery-wheel-pipeline")
