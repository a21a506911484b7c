"""deploy/: example settings are valid and without remarks, ports match the programs, containers and charts are hardened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.broker.failover.failover_settings import check_settings
from ariane.nameserver.config import NAME_SERVER_SETTINGS, NameServerConfig
from ariane.proxy.cluster.proxy_config import PROXY_SETTINGS, ProxyConfig

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CONFIGURATIONS = sorted([*DEPLOY.glob("conf/*.conf"), *DEPLOY.glob("compose/*.conf")])
TEMPLATES = DEPLOY / "helm" / "ariane" / "templates"
METRICS = {"namesrv": 9880, "broker": 10920, "proxy": 8082}
USER = "10001"


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_example_settings_exist_and_have_the_documented_ports(path: Path):
    config: BrokerConfig | NameServerConfig | ProxyConfig
    if path.stem == "namesrv":
        config, remarks = NAME_SERVER_SETTINGS.load(path, {}, {})
        assert config.metrics_port == METRICS["namesrv"]
        assert config.listen_port == NameServerConfig().listen_port
    elif path.stem == "proxy":
        config, remarks = PROXY_SETTINGS.load(path, {}, {})
        assert (config.metrics_port, config.grpc_server_port) == (METRICS["proxy"], ProxyConfig().grpc_server_port)
    else:
        config, remarks = BROKER_SETTINGS.load(path, {}, {})
        assert config.metrics_port == METRICS["broker"]
        assert config.listen_port == BrokerConfig().listen_port
        if config.has_failover:
            check_settings(config)
    assert remarks == []


def test_keys_of_the_chart_exist():
    keys = re.findall(r"^ *(?:-D)?([A-Za-z][\w.]*)=", text("helm/ariane/templates/config.yaml"), re.MULTILINE)
    keys += re.findall(r"^([A-Za-z][\w.]*)=", text("helm/ariane/templates/_helpers.tpl"), re.MULTILINE)
    keys += re.findall(r"-D(\w+)=", text("helm/ariane/templates/broker.yaml"))
    assert {"failoverMembers", "insecure", "brokerIP1", "memberName"} <= set(keys)
    values = {"failoverMembers": "a=h:1", "brokerRole": "SYNC_MASTER", "metricsPort": "1", "brokerId": "1"}
    switches = {"insecure", "aclEnable", "haTls", "haAclEnable", "tls.client.authServer"}
    numbers = {"minInSyncReplicas": "1", "tls.server.mode": "enforcing", "failoverEndpoints": "http://h:1"}
    settings = {key: values.get(key) or numbers.get(key) or ("true" if key in switches else "x") for key in keys}
    _, remarks = BROKER_SETTINGS.load(
        None, {key: value for key, value in settings.items() if key != "kvConfigPath"}, {}
    )
    assert remarks == []


def test_ports_of_the_chart_are_those_of_the_programs():
    listen, names = BrokerConfig().listen_port, NameServerConfig().listen_port
    broker = set(map(int, re.findall(r"containerPort: (\d+)", text("helm/ariane/templates/broker.yaml"))))
    assert broker == {listen - 2, listen, listen + 1, METRICS["broker"]}
    server = set(map(int, re.findall(r"containerPort: (\d+)", text("helm/ariane/templates/namesrv.yaml"))))
    assert server == {names, METRICS["namesrv"]}
    allowed = set(map(int, re.findall(r"port: (\d+)", text("helm/ariane/templates/network.yaml"))))
    assert allowed == broker | server
    exposed = re.search(r"^EXPOSE (.+)$", text("container/Containerfile"), re.MULTILINE)
    assert exposed
    assert broker | server <= set(map(int, exposed[1].split()))


def test_containers_run_without_root_on_a_read_only_root():
    image = text("container/Containerfile")
    assert re.findall(r"^USER (\d+)", image, re.MULTILINE)[-1] == USER
    assert "HEALTHCHECK" in image
    assert "/healthz" in image
    for service in yaml.safe_load(text("compose/compose.yml"))["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    helpers = text("helm/ariane/templates/_helpers.tpl")
    for setting in ("runAsNonRoot: true", f"runAsUser: {USER}", "readOnlyRootFilesystem: true", "drop: [ALL]"):
        assert setting in helpers


def test_files_that_the_compose_file_mounts_exist():
    services: dict[str, Any] = yaml.safe_load(text("compose/compose.yml"))["services"]
    volumes = [volume for service in services.values() for volume in service.get("volumes", ())]
    for source in {volume.partition(":")[0] for volume in volumes if volume.startswith(".")}:
        assert (DEPLOY / "compose" / source).is_file(), source
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text("container/Containerfile"), re.MULTILINE):
        for name in source.split():
            assert (DEPLOY.parent / name).exists(), name


def test_the_chart_has_what_a_cluster_needs():
    templates = "".join(path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.iterdir()))
    for kind in ("StatefulSet", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor", "ConfigMap", "Service"):
        assert f"kind: {kind}\n" in templates
    for probe in ("startupProbe", "livenessProbe", "readinessProbe", "preStop"):
        assert probe in templates
    assert set(re.findall(r"path: (/\w+)", templates)) == {"/healthz", "/readyz"}
