"""The edge for every kombu transport that has none of its own, through kombu's public API."""
