"""The specs: rules that answer "the first occurrence strictly after". Pure: no clock, no store, no I/O.

::

    Interval     a period in milliseconds, from an anchor       instants
    Instants     a list                                         instants
    Solar        sunrise, sunset and others at a place          instants; the extra ``solar``
    Crontab      Celery's five fields, and a second             wall-clock times
    RRule        a text of RFC 5545                             wall-clock times

    spec         the base class: ``next_after``, ``is_local``, ``in_zone``
    fields       steps by months, days and times: for Crontab and RRule

A spec of instants is the same in each zone. A spec of wall-clock times returns milliseconds as if the zone were UTC,
and a Recurrence makes instants of them.
"""
