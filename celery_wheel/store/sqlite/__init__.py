"""The store in a SQLite file.

``database`` is the file; ``locks`` are the turns of its writers, the gate for forks and the lease of a shard;
``errors`` are SQLite's errors for people.
"""
