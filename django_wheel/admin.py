"""The wheel in the Django admin: pages that read the store or results, and pages that send requests to the holders.

::

    page        module in views     address                              permission
    Wheel       wheel               …/django_wheel/wheel/  and  live/    any of the four
    Pending     lists, task         …/pending/  and  <id>/               the same
                task                …/pending/<id>/body/                 view_payload
    History     lists               …/history/                           the same
    Rejected    lists               …/rejected/                          the same
    Batches     lists               …/batch/                             the same
    Shards      lists               …/shard/                             the same
    Lateness    results             …/lateness/                          the same; in the menu if there are results
    Forecast    results             …/forecast/                          the same
    Audit log   audit               …/audit/  and  export/csv/  jsonl/   the same
    Schedules   schedules           …/schedule/ …                        the same; see ``schedules``

    requests    requests            …/pending/act/    POST               operate_wheel
                bulk                …/pending/bulk/   GET, POST          operate_wheel
                gate                …/wheel/gate/     GET, POST          operate_wheel

The template of a page is ``templates/django_wheel/<page>.html``. There are no other addresses. Django's own forms to
add, change and delete are not reachable: a task whose row is changed by any process but the holder may be lost or run
twice. So an action is a request to the holder.

A file of its own: Django finds the admin by its name.
"""

from __future__ import annotations

from django_wheel.views import audit, lists, results, schedules, wheel  # noqa: F401 - they register pages
