"""The day at the airport, and the admin with the wheel."""

from django.contrib import admin
from django.urls import path
from flights.views import board

urlpatterns = [path("", board), path("admin/", admin.site.urls)]
