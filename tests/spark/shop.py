"""An app that executors import: its routes and its tasks' options apply."""

from celery_wheel import Celery

app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.task_routes = {"shop.*": {"queue": "shop"}}


@app.task(name="shop.remind", shared=False)
def remind(number: int, *, template: str) -> None: ...
