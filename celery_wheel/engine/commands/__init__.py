"""Commands of the inbox, each with a result: cancel, move, complete, requeue, replay, pause, resume, accept the clock.

Each command is one unit of work: its effect, its answer and the deletion of its inbox item are committed together. A
request that its asker withdrew is no longer in the inbox; its unit of work is rolled back.
"""
