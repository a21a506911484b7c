"""TLS between Java and our servers: certificates on both sides, Apache's tests, a Java broker that registers encrypted."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from ariane.cli.mqadmin import main as our_mqadmin
from ariane.testing import LocalCluster, java
from tls_files import TestAuthority

COUNT = 20
APACHE_TESTS = Path(__file__).parent / "apache_tests"


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


@pytest.fixture
def apache_tests() -> list[str]:
    """Return the class path of Apache's integration tests, and of the class that directs them to our servers."""
    sources = APACHE_TESTS / "pom.xml", APACHE_TESTS / "BaseConf.java"
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    cache = Path(java.classpath().partition(":")[0]).parent / f"apache-tests-{digest}"
    classes = [f"{cache}/classes", f"{cache}/lib/*"]  # the jars contain a BaseConf, too: ours is before it
    if not (cache / "classes").is_dir():
        if shutil.which("mvn") is None:
            pytest.skip("mvn not found on the PATH: it is needed to fetch Apache's tests (apt-get install maven)")
        maven = ["mvn", "-q", "-B", "-f", str(sources[0])]
        copy = [*maven, "dependency:copy-dependencies", f"-DoutputDirectory={cache}/lib"]
        copied = subprocess.run(copy, capture_output=True, text=True, check=False)
        if copied.returncode:
            pytest.skip(f"Cannot fetch Apache's tests from Maven Central: {copied.stdout.strip().splitlines()[0]}")
        path = ":".join([java.classpath(), *classes])
        subprocess.run(["javac", "-cp", path, "-d", classes[0], str(sources[1])], check=True)
    return classes


def test_apache_integration_tests_of_tls(apache_tests: list[str]) -> None:
    """Both clients encrypt, or one of them does; tests and clients are unmodified."""
    names = [f"org.apache.rocketmq.test.tls.{name}" for name in ("TLS_IT", "TLS_Mix_IT", "TLS_Mix2_IT")]
    with LocalCluster(brokers=2) as cluster:
        jvm = [*java.quick_start(), f"-Dariane.namesrv={cluster.namesrv}", "-Dariane.cluster=DefaultCluster"]
        printed = java.run("org.junit.runner.JUnitCore", names, jvm_args=jvm, classes=apache_tests, timeout_s=300)
    assert f"OK ({len(names)} tests)" in printed
