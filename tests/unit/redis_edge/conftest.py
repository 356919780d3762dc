"""These tests share the rows of the integration tests, and need no server."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # for tests.…, however pytest was started
