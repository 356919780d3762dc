"""The demo: everything that a project with the wheel runs, started and stopped by one command."""
