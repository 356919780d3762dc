"""A private Prometheus that scrapes some addresses every second or more often: that of PATH, of Debian's package."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kit.patience import patience
from tests.kit.processes import Process
from tests.kit.servers import Server, absent


class PrometheusServer(Server):
    """One prometheus process.

    Args:
        targets: host and port of each scheduler process, by the name of their job.
        rules: files with rules to evaluate.
        interval: between two scrapes, and between two evaluations of the rules.
    """

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path] = (), interval: str = "500ms"
    ) -> None:
        super().__init__(folder)
        self._targets, self._rules, self._interval = targets, [str(path) for path in rules], interval

    def launch(self, port: int) -> Process:
        binary = shutil.which("prometheus")
        if binary is None:
            absent("prometheus")
        self.folder.mkdir(parents=True, exist_ok=True)
        # JSON is YAML too.
        configuration = {
            "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), self._interval),
            "rule_files": self._rules,
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(targets)}]}
                for job, targets in self._targets.items()
            ],
        }
        path = self.folder / "prometheus.yml"
        path.write_text(json.dumps(configuration))
        options = [f"--config.file={path}", f"--storage.tsdb.path={self.folder}/data"]
        return Process([binary, *options, f"--web.listen-address=127.0.0.1:{port}"], self.folder / "prometheus.log")

    def answers(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:  # not listening, or not ready yet
            return False

    def query(self, query: str) -> dict[tuple[str, ...], float]:
        """Return the value of each series that a query finds, by the values of its labels, without job and instance."""
        text = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{text}", timeout=patience()) as answer:
            found = json.load(answer)["data"]["result"]
        hidden = {"__name__", "job", "instance"}
        return {
            tuple(value for name, value in sorted(one["metric"].items()) if name not in hidden): float(one["value"][1])
            for one in found
        }


def check_metrics(page: str) -> str:
    """Return what promtool finds wrong in a page of metrics; nothing where all is well."""
    return promtool("check", "metrics", stdin=page)


def promtool(*arguments: str, stdin: str = "") -> str:
    tool = shutil.which("promtool")
    if tool is None:
        absent("promtool")
    found = subprocess.run([tool, *arguments], input=stdin, text=True, capture_output=True, check=False)
    return f"{found.stdout}{found.stderr}exit code {found.returncode}" if found.returncode else ""
