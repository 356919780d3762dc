"""The admin's pages.

::

    wheel, lists         pages that read the store: functions of the wheel and of the query
    lateness, forecast   pages that read results of the pipeline's jobs; results: where those are
    query                the query string of a page
    actions              the actions on tasks, as a table
    selection            the tasks that a user selected
    task_requests        confirmation, request and results of an action on tasks
    bulk, bulk_action    an action on all tasks that match a filter, and its state
    gates                pause and resume
    admin_log            entries in Django's log of the admin
    audit                the audit log of the store, and its exports
    payload              the arguments, headers and bodies that a user sees
    schedules            the pages of recurring schedules
"""
