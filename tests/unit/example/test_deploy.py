"""The files of ``example_project/deploy`` are valid, and agree with the project and with each other."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.kit.manual import code, page
from tests.kit.processes import ROOT

DEPLOY = ROOT / "example_project/deploy"
SETTINGS = (ROOT / "example_project/config/settings.py").read_text()
PORT = 9808


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def named(kind: str, name: str) -> dict[str, Any]:
    return next(one for one in kubernetes() if (one["kind"], one["metadata"]["name"]) == (kind, name))


def container(name: str) -> dict[str, Any]:
    [found] = named("Deployment", name)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    found = kubernetes()
    assert len(found) == 6
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)


def test_two_schedulers_have_probes_and_a_disruption_budget() -> None:
    spec = named("Deployment", "wheel-scheduler")["spec"]
    budget = named("PodDisruptionBudget", "wheel-scheduler")["spec"]
    assert spec["replicas"] == 2
    assert budget["minAvailable"] == 1
    assert budget["selector"] == spec["selector"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    scheduler = container("wheel-scheduler")
    assert scheduler["ports"] == [{"name": "metrics", "containerPort": PORT}]
    paths = {name: scheduler[name]["httpGet"]["path"] for name in scheduler if name.endswith("Probe")}
    assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


def test_prometheus_finds_the_schedulers_as_the_job_of_the_rules() -> None:
    [scrape] = yaml.safe_load((DEPLOY / "prometheus/kubernetes.yaml").read_text())["scrape_configs"]
    keep = next(rule for rule in scrape["relabel_configs"] if rule.get("action") == "keep")
    app = named("Deployment", "wheel-scheduler")["spec"]["template"]["metadata"]["labels"]["app"]
    assert keep["regex"] == f"{app};{container('wheel-scheduler')['ports'][0]['name']}"
    jobs = re.findall(r'up\{job=~"(.*?)"', (DEPLOY / "prometheus/alerts.yaml").read_text())
    assert jobs
    assert all(re.fullmatch(job, scrape["job_name"]) for job in jobs)


def test_the_annotations_of_the_schedulers_lead_to_their_metrics() -> None:
    found = named("Deployment", "wheel-scheduler")["spec"]["template"]["metadata"]["annotations"]
    assert found == {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"}
    dashboard = (DEPLOY / "grafana/celery-wheel.json").read_text()
    assert '"query": "label_values(celery_wheel_holder, job)"' in dashboard, "its jobs are those that have the metrics"


def test_the_manifests_migrate_and_serve_the_pages() -> None:
    job = named("Job", "migrate")["spec"]["template"]["spec"]["containers"][0]
    assert job["args"][:3] == ["python", "manage.py", "migrate"]
    web, service = named("Deployment", "web")["spec"], named("Service", "web")["spec"]
    assert service["selector"].items() <= web["template"]["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container("web")["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == 8000
    assert "--bind=0.0.0.0:8000" in container("web")["args"]
    assert {"gunicorn", "whitenoise"} <= set((DEPLOY / "Dockerfile").read_text().split())
    services = compose()["services"]
    assert services["web"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert services["migrate"]["command"] == job["args"]


@pytest.fixture(scope="module")
def helm() -> Path:
    found = shutil.which("helm", path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"])))
    if found is None:
        pytest.skip("helm is absent: make services installs it")
    return Path(found)


def rendered(helm: Path, *options: str) -> list[dict[str, Any]]:
    command = [helm, "template", "flights", DEPLOY / "helm", *options]
    return list(yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_helm_finds_nothing_in_the_chart(helm: Path) -> None:
    found = subprocess.run([helm, "lint", "--strict", DEPLOY / "helm"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout


def test_the_chart_renders_the_manifests(helm: Path) -> None:
    found = rendered(helm)
    assert sorted(one["kind"] for one in found) == ["Deployment", "Job", "PodDisruptionBudget"]
    for one in found:
        kubernetes_validate.validate(one, "1.37", strict=True)
        assert one["spec"] == named(one["kind"], one["metadata"]["name"])["spec"]


def test_the_values_of_the_chart_reach_the_pods(helm: Path) -> None:
    [budget, deployment] = sorted(
        rendered(helm, "--set", "migrate=null,image=shop:7,secret=shop,replicas=3", "--set-json", 'args=["beat"]'),
        key=lambda one: str(one["kind"]),
        reverse=True,
    )
    assert (budget["kind"], deployment["spec"]["replicas"]) == ("PodDisruptionBudget", 3)
    [pod] = deployment["spec"]["template"]["spec"]["containers"]
    assert (pod["image"], pod["args"], pod["envFrom"]) == ("shop:7", ["beat"], [{"secretRef": {"name": "shop"}}])


def test_the_autoscaler_of_the_chart_is_that_of_the_page(helm: Path) -> None:
    [example] = code(page("scaling.md"), "yaml")
    wanted = yaml.safe_load(example)
    wanted["spec"]["triggers"].pop()  # a queue's own length is not the wheel's
    address = wanted["spec"]["triggers"][0]["metadata"]["serverAddress"]
    found = rendered(helm, "--set", f"scaling.prometheus={address}")
    assert [one for one in found if one["kind"] == "ScaledObject"] == [wanted]


@pytest.mark.parametrize("name", ["migrate", "worker", "web", "wheel-scheduler"])
def test_no_pod_writes_outside_of_its_volumes_as_root(name: str) -> None:
    spec = named("Job" if name == "migrate" else "Deployment", name)["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert all(one["securityContext"]["allowPrivilegeEscalation"] is False for one in spec["containers"])
    assert {one["name"] for one in spec["containers"][0]["volumeMounts"]} == {one["name"] for one in spec["volumes"]}


def test_a_worker_is_probed_by_its_name() -> None:
    worker = container("worker")
    assert worker["args"][worker["args"].index("-n") + 1] == "worker@%h"
    assert "inspect ping -d worker@$(hostname)" in worker["livenessProbe"]["exec"]["command"][-1]
    assert "inspect ping -d worker@$$(hostname)" in compose()["services"]["worker"]["healthcheck"]["test"][-1]


def test_the_services_of_compose_wait_for_services_with_a_health_check() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if how != {"condition": "service_completed_successfully"}:
                assert how == {"condition": "service_healthy"}, name
                assert "healthcheck" in services[other], other
    used = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", ())}
    assert used == compose()["volumes"].keys()
    assert services["scheduler"]["healthcheck"]["test"] == ["CMD", "celery-wheel-probe"]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    found = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.stdout + found.stderr, found.returncode) == ("", 0)


def test_the_image_copies_what_exists() -> None:
    names = " ".join(re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)).split()
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_variable_that_a_file_sets_is_one_of_the_settings() -> None:
    text = "".join(path.read_text() for path in DEPLOY.iterdir() if path.is_file())
    known = set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', SETTINGS)) | {"DJANGO_SETTINGS_MODULE"}
    in_unit = set(re.findall(r"^Environment=(\w+)=", text, re.MULTILINE))
    in_image = set(re.findall(r"(?<=[ ])([A-Z_]+)=\S", "".join(re.findall(r"^ENV .*$", text, re.MULTILINE))))
    assert in_unit | set(compose()["services"]["worker"]["environment"]) <= known
    assert in_image - {"PYTHONUNBUFFERED"} <= known
    assert f"WHEEL_METRICS=0.0.0.0:{PORT}" in text


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "celery-wheel.service").read_text()
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(unit)
    service = read["Service"]
    assert (service["Type"], service["KillMode"], service["WatchdogSec"]) == ("notify", "mixed", "30")
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is absent: its own check is left out")
    path = tmp_path / "celery-wheel.service"
    path.write_text(unit.replace("/srv/flights/.venv/bin/celery", sys.executable))
    found = subprocess.run([analyze, "verify", path], capture_output=True, text=True, check=False)
    assert [line for line in found.stderr.splitlines() if "celery-wheel.service" in line] == []
