"""The wheel in the Django admin. A file of its own: Django finds the admin by its name.

::

    page        module in views     address                              permission
    Wheel       wheel, problems     …/django_wheel/wheel/  live/  seen/  any of the five
    Pending     lists, task         …/pending/  and  <id>/               the same; <id>/body/: view_payload
    History     lists               …/history/                           the same; so Rejected, Settlements and Shards
    Lateness    results             …/lateness/                          the same; so Forecast; in the menu with results
    Groups      groups              …/group/                             the same
    Audit log   audit               …/audit/  and  export/csv/  jsonl/   the same
    Schedules   schedules           …/schedule/ …                        the same; see ``schedules``
    requests    requests, bulk      …/pending/act/  bulk/  bulk/<id>/    operate_wheel
                gate, limits        …/wheel/gate/  …/group/limits/       operate_wheel
                erase               …/audit/erase/                       erase_data

The template of a page is ``templates/django_wheel/<page>.html``. Django's own forms to add, change and delete are not
reachable: a task whose row is changed by any process but the holder may be lost or run twice.
"""

from __future__ import annotations

from django_wheel.views import audit, groups, lists, results, schedules, wheel  # noqa: F401 - they register pages
