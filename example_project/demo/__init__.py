"""The demo: one command starts and stops every process of a project with the wheel."""
