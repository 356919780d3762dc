"""The common parts of the suites; CONTRIBUTING.md describes it."""
