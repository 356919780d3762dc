"""The edge for kombu transports that have no edge of their own, through kombu's public API."""
