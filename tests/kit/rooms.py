"""The rooms of ``celery_wheel`` and their floors. A file of its own: tests hold them, and a page shows them."""

#: The rooms, from the ground to the top, and ``django_wheel`` above them. A module imports rooms of lower floors, and
#: its own room.
FLOORS = (
    "errors values timing",
    "store console conf recurring",
    "overview",
    "archive engine requests results",
    "broker metrics",
    "producer",
    "bulk_load",
    "scheduler worker",
    "control",
    "app",
    "beat operations pipeline testing",
    "cli",
    "django_wheel",
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms.split()}
