"""Commands: cancel, move, complete, requeue, replay, pause, resume and accept the clock, each with a result."""
