"""The terminal: parameters of commands, tables, JSON, questions and progress. It imports no room but ``values``."""
