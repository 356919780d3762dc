"""The admin's pages.

::

    live, lists      what is shown: functions of the request and of the wheel, that only read
    lateness, forecast   likewise, of what the pipeline's jobs left; results: where that is
    request          what they are asked for
    actions          what can be done to tasks, as a table
    chosen           to which
    acting, gates    doing it, with a verdict
    record           Django's log of what was done
"""
