"""The files in deploy/ agree with the package and with one another. No engine that would run them is here.

What failed when they were run has a test here: docs/deployment.md says what was run.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from dagster._core.instance import DagsterInstance
from dagster._core.workspace.load import location_origins_from_yaml_paths

from sme2_assets.cli import main
from sme2_assets.defs.workers import WorkerRunLauncher
from sme2_assets.store import CHECKOUT, DAGSTER_YAML, Store
from sme2_assets.targets.inventory import read_inventory
from sme2_assets_tests.servers import free_port

DEPLOY = CHECKOUT / "deploy"
# Of every process of the lab: what our code, Dagster's configuration here, and the store's client read.
NEEDED = {"SME2_POSTGRES", "SME2_BROKER", "SME2_STORE", "SME2_INVENTORY"}


def parsed(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / name).read_text()))


@pytest.fixture
def instance_config() -> dict[str, Any]:
    return parsed("dagster.yaml")


def commands() -> dict[str, list[str]]:
    return {
        name: service["command"]
        for name, service in parsed("compose.yaml")["services"].items()
        if service["image"] == "sme2-deploy"
    }


def test_dagster_opens_the_instance_and_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copy(DEPLOY / "dagster.yaml", tmp_path)
    # Not to be reached, and not until it is asked for anything.
    monkeypatch.setenv("SME2_BROKER", "memory://")
    monkeypatch.setenv("SME2_CODE_HOST", "code")
    text = (tmp_path / "dagster.yaml").read_text()
    without = re.sub(r"^storage:\n(  .*\n)+", "", text, flags=re.MULTILINE)
    (tmp_path / "dagster.yaml").write_text(without)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        launcher = instance.run_launcher
        assert isinstance(launcher, WorkerRunLauncher)
        assert launcher.default_queue == "lab"
        assert instance.run_monitoring_enabled
    [origin] = location_origins_from_yaml_paths([str(DEPLOY / "workspace.yaml")])
    assert (origin.host, origin.port) == ("code", 4000)


def test_many_machines_keep_the_rules_of_a_single_one(instance_config: dict[str, Any]):
    single = yaml.safe_load(DAGSTER_YAML.read_text())
    for name in ("telemetry", "nux", "concurrency", "run_retries", "retention"):
        assert instance_config[name] == single[name]
    monitoring = {**instance_config["run_monitoring"]}
    assert monitoring.pop("poll_interval_seconds") == 60
    # A run may wait for a worker.
    assert monitoring.pop("start_timeout_seconds") > single["run_monitoring"]["start_timeout_seconds"]
    assert monitoring.items() <= single["run_monitoring"].items()
    assert set(instance_config) - set(single) == {"storage", "run_launcher"}


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_service_has_a_command_that_is_there_and_what_it_needs(name: str):
    program, *words = commands()[name]
    words = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in words]
    if program == "sme2":
        command = main.commands[words[0]]
        assert isinstance(command, click.Command)
        command.make_context(words[0], words[1:])
    elif words[0] == "-m":
        assert importlib.import_module(words[1])
    elif words[0] == "-c":
        compile(words[1], name, "exec")
    else:
        assert (Path(sys.executable).parent / program).is_file()
    service = parsed("compose.yaml")["services"][name]
    assert set(service["environment"]) >= NEEDED
    modules = [words[at + 1] for at, word in enumerate(words) if word == "--module-name"]
    assert all(hasattr(importlib.import_module(module), "defs") for module in modules)


def test_everything_that_the_files_take_from_the_environment_is_given(instance_config: dict[str, Any]):
    asked = set(re.findall(r"env: (\w+)", (DEPLOY / "dagster.yaml").read_text()))
    asked |= set(re.findall(r"env: (\w+)", (DEPLOY / "workspace.yaml").read_text()))
    assert asked <= set(parsed("compose.yaml")["services"]["daemon"]["environment"])
    read = "".join(path.read_text() for path in (CHECKOUT / "sme2_assets").rglob("*.py"))
    for name in NEEDED - asked:
        assert f'"{name}"' in read


def test_services_mount_what_is_declared_and_the_sensors_see_the_lab_s_warehouse():
    compose = parsed("compose.yaml")
    services = compose["services"]
    mounted = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if not volume.startswith((".", "$"))
    }
    assert mounted == set(compose["volumes"])
    assert "lab:/sme2/data" in set(services["code"]["volumes"]) & set(services["lab"]["volumes"])
    for service in services.values():
        assert set(service.get("depends_on", [])) <= set(services)


def test_every_container_reads_the_files_it_shows_or_works_on():
    services = parsed("compose.yaml")["services"]
    for name in ("code", "webserver", "lab", "worker"):
        assert "./inventory:/inventory:ro" in services[name]["volumes"]
    assert "worker:/sme2/data" in services["worker"]["volumes"]
    # Reports are pages beside the UI.
    assert "lab:/sme2/data:ro" in services["webserver"]["volumes"]


def test_nobody_asks_for_a_server_or_for_tables_before_they_are_there():
    services = parsed("compose.yaml")["services"]
    assert services["code"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    for name in ("webserver", "daemon", "lab", "worker"):
        assert services[name]["depends_on"]["code"] == {"condition": "service_healthy"}
    assert all("healthcheck" in services[name] for name in ("postgres", "code"))


@pytest.mark.parametrize("name", ["code", "webserver"])
def test_the_check_of_a_server_fails_until_it_listens(name: str):
    service = parsed("compose.yaml")["services"][name]
    how, program, *words = service["healthcheck"]["test"]
    assert (how, program) == ("CMD", "python")
    [port] = {service["command"][at + 1] for at, word in enumerate(service["command"]) if word == "--port"}
    free = free_port()
    assert port in words[-1]
    words[-1] = words[-1].replace(port, str(free))
    assert subprocess.run([sys.executable, *words], capture_output=True).returncode != 0
    with HTTPServer(("127.0.0.1", free), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert subprocess.run([sys.executable, *words], capture_output=True).returncode == 0
        server.shutdown()


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/server_info" else 404)
        self.end_headers()


def test_containers_end_as_they_should_and_a_new_one_is_the_same_machine():
    services = parsed("compose.yaml")["services"]
    for name in commands():
        # Whatever loses its parent becomes a child of the first process, which must wait for it.
        assert services[name]["init"] is True
    for name in ("lab", "worker"):
        assert services[name]["hostname"].startswith("sme2-")
        assert services[name]["stop_grace_period"] == "10m"


def test_a_password_is_given_once_to_servers_and_clients():
    services = parsed("compose.yaml")["services"]
    password = "${SME2_PASSWORD:-sme2}"
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == password
    assert services["redis"]["command"][-2:] == ["--requirepass", password]
    environment = services["daemon"]["environment"]
    assert f":{password}@postgres:" in environment["SME2_POSTGRES"]
    assert f":{password}@redis:" in environment["SME2_BROKER"]


def test_the_inventory_names_workers_that_the_compose_file_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("SME2_INVENTORY", str(DEPLOY / "inventory" / "devices.yaml"))
    named = {entry.worker for entry in read_inventory(Store(tmp_path)).devices.values()}
    assert named == {"rack"}
    assert "${SME2_WORKER:-rack}" in commands()["worker"]


def test_the_values_for_helm_say_the_same_as_the_instance(instance_config: dict[str, Any]):
    values = parsed("values.yaml")
    assert values["runLauncher"]["config"]["customRunLauncher"] == instance_config["run_launcher"]
    daemon = values["dagsterDaemon"]
    queue = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    runs = instance_config["concurrency"]["runs"]
    assert queue["maxConcurrentRuns"] == runs["max_concurrent_runs"]
    assert queue["tagConcurrencyLimits"] == runs["tag_concurrency_limits"]
    for theirs, ours in (
        (daemon["runMonitoring"], instance_config["run_monitoring"]),
        (daemon["runRetries"], instance_config["run_retries"]),
    ):
        assert {_snake(name): value for name, value in theirs.items()} == ours
    kept = {"schedule": values["retention"]["schedule"], "sensor": values["retention"]["sensor"]}
    assert {name: {_snake(key): value for key, value in it.items()} for name, it in kept.items()} == (
        instance_config["retention"]
    )
    [code] = values["dagster-user-deployments"]["deployments"]
    assert code["dagsterApiGrpcArgs"] == ["--module-name", "sme2_assets.definitions"]
    [worker] = [it for it in values["extraManifests"] if it["kind"] == "Deployment"]
    [container] = worker["spec"]["template"]["spec"]["containers"]
    assert container["command"] == commands()["lab"]
    assert values["additionalInstanceConfig"]["nux"] == instance_config["nux"]


def test_the_worker_in_the_cluster_gets_what_the_chart_gives_the_others():
    values = parsed("values.yaml")
    home = values["global"]["dagsterHome"]
    image = values["dagsterDaemon"]["image"]
    [code] = values["dagster-user-deployments"]["deployments"]
    [worker] = [it for it in values["extraManifests"] if it["kind"] == "Deployment"]
    spec = worker["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert container["image"] == f"{image['repository']}:{image['tag']}"
    # Without it, an image with the tag `latest` is always pulled.
    assert container["imagePullPolicy"] == image["pullPolicy"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in spec["volumes"]}
    # The file alone: a mounted ConfigMap is a folder that nobody can write to.
    assert mounts["instance"]["mountPath"] == f"{home}/{mounts['instance']['subPath']}"
    assert [mounts["data"], mounts["inventory"]] == code["volumeMounts"]
    assert [it for it in spec["volumes"] if it["name"] != "instance"] == code["volumes"]
    # Their claim is of one node. `deployment` is the chart's label for the name of a code server.
    [rule] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"] == {"matchLabels": {"deployment": code["name"]}}


def test_the_image_has_the_files_where_the_services_look_for_them():
    lines = (DEPLOY / "Dockerfile").read_text()
    # A worker reaches its devices with these.
    [installed] = re.findall(r"apt-get install (.*?) \\\n", lines)
    assert {"adb", "openssh-client"} <= set(shlex.split(installed))
    [copied] = re.findall(r"^COPY (.*)$", lines, re.MULTILINE)
    owner, *sources, target = shlex.split(copied)
    assert owner == "--chown=sme2"
    assert all((CHECKOUT / source).is_file() for source in sources)
    home = re.findall(r"DAGSTER_HOME=(\S+)", lines)[0]
    assert target == f"{home}/"
    looked_for = {word for words in commands().values() for word in words if word.endswith("workspace.yaml")}
    assert looked_for == {f"{home}/workspace.yaml"}


def test_no_container_of_ours_runs_as_root():
    base = (CHECKOUT / "Dockerfile").read_text()
    [number] = re.findall(r"^ARG UID=(\d+)$", base, re.MULTILINE)
    for lines in (base, (DEPLOY / "Dockerfile").read_text()):
        assert re.findall(r"^USER (.*)$", lines, re.MULTILINE)[-1] == "sme2"
    assert any(
        ":/home/sme2/.ssh:" in volume for volume in parsed("compose.yaml")["services"]["worker"]["volumes"]
    )
    values = parsed("values.yaml")
    [code] = values["dagster-user-deployments"]["deployments"]
    [worker] = [it for it in values["extraManifests"] if it["kind"] == "Deployment"]
    for context in (
        *(part["podSecurityContext"] for part in (values["dagsterWebserver"], values["dagsterDaemon"], code)),
        worker["spec"]["template"]["spec"]["securityContext"],
    ):
        assert context["runAsNonRoot"]
        # Volumes are the user's, too.
        assert context["runAsUser"] == context["fsGroup"] == int(number)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)
