"""Intake, the parts of ``ingest``: read the inbox, unpack bulk loads, admit or refuse each message."""
