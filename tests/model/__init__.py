"""Models of the protocol, small enough that a search visits every state, and the same models as judges of real engines.

::

    checker      the search, and the replay of a row of events      no knowledge of the product
    shard        lease, epoch and commits in the store              a part of the next two
    lease        … and offsets on Redis                             docs/architecture.md, "The holder of a shard"
    doubt        … and rows in doubt on RabbitMQ
    cancelling   a cancel against acceptance, dispatch, takeover    "The life of a cancel"
    releasing    the release of a group with a limit                celery_wheel/engine/state/groups.py
    broken       each model with one rule left out: the search has to find a counterexample
    traces       what the simulation did, as events of the models

A model is a class: a method an event, ``require`` a rule. The search tries every event in every state; the rules say
which of them may happen, and ``broken`` which promise fails. ``python -m tests.model --traces 10000`` is the long form.
"""
