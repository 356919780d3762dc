"""The example project is not installed: its folder is put on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "example_project"))
