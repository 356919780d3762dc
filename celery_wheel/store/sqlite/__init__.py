"""The store in a SQLite file: ``database`` is the file, ``lease`` an OS lock for each shard, ``threads`` the turns of
writers and the gate for forks, ``errors`` SQLite's errors for people."""
