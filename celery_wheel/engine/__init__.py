"""The engine: accepts messages, keeps them pending and publishes them on time."""
