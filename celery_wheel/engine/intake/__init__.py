"""Intake: messages of the wheel queue, the inbox and bulk loads are accepted, each once."""
