"""One page: how the day is going."""

from django.urls import path
from flights.views import board

urlpatterns = [path("", board)]
