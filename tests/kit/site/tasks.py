from celery import shared_task


@shared_task(name="site.nothing")
def nothing(*args: object) -> None:
    pass
