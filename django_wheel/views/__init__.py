"""The admin's pages; ``django_wheel.admin`` lists their addresses. More than 15 files: a page is found by its name.

::

    page, query                        permissions, addresses and answer of a page; its query string
    requests                           confirmation, request to the holders, its results, and the admin's log
    task_actions, schedule_actions     the actions, as tables; bulk: an action on all tasks that match a filter
    payload, results                   arguments and bodies that a user may see; results of the pipeline's jobs
"""
