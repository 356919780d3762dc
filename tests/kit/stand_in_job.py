"""A stand-in for a job of the pipeline: a program that ends as a job ends. Tests of Spark run the jobs themselves."""

import sys

#: The program prints a step to stderr, its first argument to stdout, and ends with its second as the exit code.
PROGRAM = "import sys; print('archive: reading', file=sys.stderr); print(sys.argv[3]); sys.exit(int(sys.argv[4]))"
COMMAND = (sys.executable, "-c", PROGRAM)

DONE = '{"job": "archive", "days": 2, "words": ["2 days were written"]}'
FOUND = '{"job": "reconcile", "findings": {"lost": 3}, "words": ["3 scheduled, 0 ran", "lost: 3"]}'
