"""Sources of recurring schedules: ``beat_schedule``, the tables of django-celery-beat, and declarations of tasks.

::

    beat's own thread                       the thread "wheel-sources", while this process holds shard 0
    ┌──────────────────────────────┐        ┌───────────────────────────────────────────────────────────────┐
    │ populate_heap ─► entries ────┼───────►│ BeatSource   ─┐                                               │
    │   keeps those of the base    │        │ DjangoSource ─┴► Follower ─► difference ─► create, update,    │
    └──────────────────────────────┘        │      ▲              ▲                      delete by the inbox │
                                            │      └ RunCounts    └ the store's schedules of the source     │
                                            └───────────────────────────────────────────────────────────────┘

    base              the entries that stay with Beat's own scheduler, for WheelMixin
    sources           the thread
    follower          makes the store's schedules equal to the entries of one source
    beat_entries      an entry of Beat as a definition            BeatSource, the listings of Beat's thread
    django_rows       a row of django-celery-beat as a definition
    django_reader     reads rows, also for ``operations.schedule_import``
    django_source     which rows have changed
    django_counts     writes last_run_at and total_run_count back
    apply_entry       calls ``Scheduler.apply_entry`` where something has patched it
    declared          schedules that tasks declare by the option wheel_schedule
    entry             the values that sources yield

Promises
    1. The difference is computed from the source and the store alone, anew at each start and takeover: a crash between
       two commands loses nothing.
    2. An instant that another scheduler has sent is not sent again: a new schedule continues after ``last_run_at``.
    3. An interval keeps its anchor until its period changes.
    4. An entry that cannot be read, or whose name is taken, stops no other entry; its reason is in the store or in the
       status of shard 0.
    5. An entry is run by the wheel or by the base scheduler, and the base scheduler sends none before the first
       difference is in the store.

Non-promises
    A change that users make to such a schedule by ``app.wheel.schedules`` lasts until its entry changes, or until the
    next start.
"""
