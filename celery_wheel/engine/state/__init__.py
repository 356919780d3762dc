"""One holder's memory of one shard: lanes, the window on the store, gates, tombstones and revoked stamps."""
