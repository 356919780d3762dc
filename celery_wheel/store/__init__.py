"""The durable store: the table is the log, the hand is the offset."""
