"""TLS between Java and our servers: Java's clients, with certificates on both sides, and a Java broker that registers encrypted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ariane.cli.mqadmin import main as our_mqadmin
from ariane.testing import LocalCluster, java
from tls_files import TestAuthority

COUNT = 20


@pytest.mark.parametrize("release", [java.V4, java.V5], ids=lambda release: release.version)
def test_java_clients_verify_and_are_verified(tmp_path: Path, release: java.JavaRelease) -> None:
    if reason := release.available():
        pytest.skip(f"Java peers: {reason}")
    authority = TestAuthority(tmp_path)
    server, client = authority.files("server"), authority.files("client")
    settings = {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": server.cert,
        "tls_server_key_path": server.key,
        "tls_server_trust_cert_path": server.trust,
        "tls_server_need_client_auth": "require",
        "tls_server_auth_client": True,
        "tls_client_cert_path": client.cert,
        "tls_client_key_path": client.key,
        "tls_client_auth_server": True,
        "tls_client_trust_cert_path": client.trust,
    }
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.config.file": tmp_path / "none",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": client.trust,
        "tls.client.certPath": client.cert,
        "tls.client.keyPath": client.key,
    }
    jvm = [*release.quick_start(), *(f"-D{key}={value}" for key, value in properties.items())]
    with LocalCluster(tmp_path / "store", **settings) as cluster:
        produce = [cluster.namesrv, "T", "P", str(COUNT), "size=20000"]
        sent = java.events(release.run("ariane.peers.Produce", produce, jvm_args=jvm))
        assert [item["status"] for item in sent] == ["SEND_OK"] * COUNT
        if release is java.V4:
            consume = [cluster.namesrv, "T", "G", "*", str(COUNT), "60"]
            received = java.events(release.run("ariane.peers.Consume", consume, jvm_args=jvm))
            assert {item["msgId"] for item in received} == {item["msgId"] for item in sent}


def test_a_java_broker_registers_encrypted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    jvm = [*java.quick_start(), "-Dtls.enable=true"]
    with (
        LocalCluster(tls_server_mode="enforcing") as cluster,
        java.broker(tmp_path / "b", cluster.namesrv, jvm_args=jvm, properties={"brokerName": "java-b"}) as broker,
    ):
        # The status may be 1: a broker of 4.9.4 fails to report its statistics in its first second.
        our_mqadmin.main(["clusterList", "-n", cluster.namesrv, "--useTls", "--tlsVerify", "false"])
        assert broker.addr in capfd.readouterr().out
        broker.process.kill()
