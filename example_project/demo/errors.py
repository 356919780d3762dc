class DemoError(Exception):
    """Something a person has to put right; the message says what."""
