"""Tickets: an order is cancelled unless it is paid in time, and exactly one of the two happens."""

from django_wheel.project import project_wheel
from flights.models import Order
from flights.tasks import cancel_unless_paid

PAY_WITHIN_S = 20.0


def order(flight: str, within_s: float = PAY_WITHIN_S) -> Order:
    placed = Order.objects.create(flight=flight)
    cancel_unless_paid.apply_async([placed.pk], countdown=within_s, wheel={"watch": [_key(placed)]})
    return placed


def pay(placed: Order) -> bool:
    """Pay an order; returns False if too late. Raises WheelUnavailable, without effect, if no scheduler answers."""
    if not project_wheel().complete(_key(placed), reason="paid"):
        return False
    Order.objects.filter(pk=placed.pk).update(state=Order.State.PAID)
    return True


def _key(placed: Order) -> str:
    return f"order:{placed.pk}"
