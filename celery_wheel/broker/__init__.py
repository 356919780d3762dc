"""The broker edges: one file a broker, client libraries imported only there."""
