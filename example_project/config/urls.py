"""The day at the airport, and the admin with the wheel."""

from django.contrib import admin
from django.urls import path
from flights.views import board, pay_order, place_order, send_notices

urlpatterns = [
    path("", board, name="board"),
    path("orders/", place_order, name="order"),
    path("orders/<int:pk>/pay/", pay_order, name="pay"),
    path("notices/", send_notices, name="notices"),
    path("admin/", admin.site.urls),
]
