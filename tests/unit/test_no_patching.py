"""A process that merely imports celery_wheel finds every class of Celery and kombu as it was."""

import subprocess
import sys

PROGRAM = """
import importlib, sys

for name in ("celery.app.task", "celery.apps.worker", "celery.apps.beat", "celery.bin.celery", "celery.canvas",
             "celery.contrib.testing.app", "celery.events.state", "celery.worker.control", "kombu.transport.memory"):
    importlib.import_module(name)
theirs = [one for name, one in list(sys.modules.items()) if name.partition(".")[0] in ("celery", "kombu", "billiard")]
classes = {one for module in theirs for one in list(vars(module).values()) if isinstance(one, type)}
before = {one: dict(vars(one)) for one in classes if one.__module__.startswith(("celery.", "kombu.", "billiard."))}
assert len(before) > 300
for name in ("app", "beat", "bulk_load", "cli", "control", "producer.rescue", "scheduler.service", "testing",
             "worker.run_reports"):
    importlib.import_module("celery_wheel." + name)


def changed():
    for one, attributes in before.items():
        now = dict(vars(one))
        for name in sorted(now.keys() | attributes.keys()):
            if now.get(name) is not attributes.get(name):
                yield f"{one.__module__}.{one.__qualname__}.{name}"


print(*changed())
importlib.import_module("celery_wheel").Celery("shop", set_as_current=False)
print(*changed())
"""


def test_an_import_changes_no_class_of_celery_and_an_app_one_attribute() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["", "celery.app.task.Context.__getattr__"]
