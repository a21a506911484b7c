"""What the settings of failover mean: members, times, and the client of the coordination service (etcd, a Lease of Kubernetes)."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.failover.waiting import SystemBootClock
from ariane.errors import ConfigError, ProtocolError
from ariane.failover.coordination import Coordination
from ariane.failover.etcd import EtcdCoordination, EtcdCredentials
from ariane.failover.kubernetes import KubernetesAccess, KubernetesCoordination
from ariane.failover.member_state import LeaseTimes
from ariane.model import host

IN_CLUSTER = "kubernetes"  # as failoverEndpoints: the API server of the pod's cluster, with its service account
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,127}")


def members_of(config: BrokerConfig) -> dict[str, str]:
    """Return the addresses of all members by name.

    Raises:
        ConfigError: failoverMembers is malformed.
    """
    members: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in config.failover_members.split(";"))):
        name, _, addr = entry.partition("=")
        try:
            host.parse(addr)
        except ProtocolError as error:
            raise ConfigError("failoverMembers", entry, f"expected name=host:port; {error}") from error
        if not _NAME.fullmatch(name) or name in members:
            raise ConfigError(
                "failoverMembers", entry, "expected a memberName, each once, of letters, digits, '.', '_' and '-'"
            )
        members[name] = addr
    return members


def check_settings(config: BrokerConfig) -> None:
    """Check what failover needs of a broker's settings.

    Raises:
        ConfigError: one of them is missing or invalid.
    """
    if not config.member_name:
        raise ConfigError(
            "memberName", "", "required by failoverEndpoints: a name that this broker keeps in all its roles"
        )
    if config.member_name not in members_of(config):
        fix = f"expected an entry {config.member_name}=host:listenPort, and one for each other broker of the set"
        raise ConfigError("failoverMembers", config.failover_members, fix)
    if config.broker_role != "SYNC_MASTER":
        fix = "expected SYNC_MASTER at all brokers of the set: a record in etcd decides which of them is the master"
        raise ConfigError("brokerRole", config.broker_role, fix)
    if config.broker_id < 1:
        fix = "expected at least 1, and different from the other brokers of the set: the id while it is a slave"
        raise ConfigError("brokerId", config.broker_id, fix)
    probe_interval_s(config)
    if not config.listen_port:
        raise ConfigError("listenPort", 0, "expected the port of failoverMembers, which stays in all roles")


def lease_times(config: BrokerConfig) -> LeaseTimes:
    """Return the times of the lease: they leave room for a renewal with all its attempts."""
    ttl_s = config.failover_ttl
    return LeaseTimes(
        ttl_s=float(ttl_s),
        renew_s=0.3 * ttl_s,
        attempt_s=0.15 * ttl_s,
        margin_s=0.2 * ttl_s,
        poll_s=min(1.0, 0.1 * ttl_s),
        probe_limit_s=config.failover_probe_limit / 1000,
        has_failsafe=config.failover_failsafe,
    )


def probe_interval_s(config: BrokerConfig) -> float:
    """Return the pause between two probes of the disk.

    Raises:
        ConfigError: a probe could not end within the limit.
    """
    limit_s, interval_s = lease_times(config).disk_limit_s, config.failover_probe_interval / 1000
    if interval_s > limit_s / 2:
        fix = f"expected at most half of failoverProbeLimit, which is {limit_s * 1000:g} ms (0: a third of failoverTtl)"
        raise ConfigError("failoverProbeInterval", config.failover_probe_interval, fix)
    return interval_s or min(1.0, limit_s / 4)


def open_coordination(config: BrokerConfig) -> Coordination:
    """Return the client of the coordination service; it connects with the first request.

    Raises:
        ConfigError: an endpoint is invalid, or a file cannot be used.
    """
    endpoints = [url.strip() for url in config.failover_endpoints.split(";") if url.strip()]
    if any(url.startswith("kubernetes") for url in endpoints):
        return _open_kubernetes(config, endpoints)
    prefix = config.failover_prefix or f"/ariane/{config.broker_cluster_name}/{config.broker_name}"
    return EtcdCoordination(
        endpoints,
        prefix,
        ttl_s=config.failover_ttl,
        attempt_s=lease_times(config).attempt_s,
        tls=_tls(config) if any(url.startswith("https:") for url in endpoints) else None,
        credentials=_credentials(config),
    )


def _open_kubernetes(config: BrokerConfig, endpoints: list[str]) -> Coordination:
    ca_file, token_file = config.failover_ca_file, config.failover_password_file
    if endpoints == [IN_CLUSTER]:
        address = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        try:
            namespace = (SERVICE_ACCOUNT / "namespace").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            fix = f"needs the service account of a pod, which cannot be read: {error}; name kubernetes+https://host:port/namespace"
            raise ConfigError("failoverEndpoints", IN_CLUSTER, fix) from error
        server = f"[{address[0]}]" if ":" in address[0] else address[0]
        endpoints = [f"kubernetes+https://{server}:{address[1]}/{namespace}"]
        ca_file = ca_file or str(SERVICE_ACCOUNT / "ca.crt")
        token_file = token_file or str(SERVICE_ACCOUNT / "token")
    is_secure = any("https:" in url for url in endpoints)
    tls = _tls(msgspec.structs.replace(config, failover_ca_file=ca_file)) if is_secure else None
    name = config.failover_prefix or f"ariane-{config.broker_cluster_name}-{config.broker_name}".lower().replace(
        "_", "-"
    )
    return KubernetesCoordination(
        endpoints,
        name,
        ttl_s=config.failover_ttl,
        attempt_s=lease_times(config).attempt_s,
        clock=SystemBootClock(),
        access=KubernetesAccess(token_file, tls),
    )


def role_config(config: BrokerConfig, *, leads: bool) -> BrokerConfig:
    """Return the settings of this broker in a role. Consumers read only what the whole set has."""
    role, broker_id = ("SYNC_MASTER", 0) if leads else ("SLAVE", config.broker_id)
    values = {"broker_role": role, "broker_id": broker_id, "confirmed_reads": True}
    return msgspec.structs.replace(config, **values)


def _credentials(config: BrokerConfig) -> EtcdCredentials | None:
    if not config.failover_user:
        return None
    try:
        password = Path(config.failover_password_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("failoverPasswordFile", config.failover_password_file, f"cannot be read: {error}") from error
    return EtcdCredentials(config.failover_user, password)


def _tls(config: BrokerConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.failover_ca_file or None)
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError("failoverCaFile", config.failover_ca_file, f"cannot be used: {error}") from error
    if config.failover_cert_file:
        try:
            context.load_cert_chain(config.failover_cert_file, config.failover_key_file or None)
        except OSError as error:
            raise ConfigError("failoverCertFile", config.failover_cert_file, f"cannot be used: {error}") from error
    return context
