from __future__ import annotations

from celery_wheel.pipeline.cli import main

main(prog_name="celery-wheel-pipeline")
