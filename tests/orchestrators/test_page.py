"""The examples of docs/orchestration.md define what they say."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "orchestration.md").read_text()


@pytest.mark.parametrize(("package", "number"), [("airflow.sdk", 0), ("dagster", 1)])
def test_the_example_defines_its_jobs_in_their_order(package: str, number: int) -> None:
    pytest.importorskip(package, reason="make test-orchestrators installs it")
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number], names)  # noqa: S102 - our own page
    if number == 0:
        assert names["archive"].task_id == "archive"
    else:
        graph = names["defs"].resolve_asset_graph()
        assert {key.to_user_string(): len(graph.get(key).parent_keys) for key in graph.get_all_asset_keys()} == {
            "wheel_archive": 0,
            "wheel_lateness": 1,
        }
