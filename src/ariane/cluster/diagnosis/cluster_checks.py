"""Checks of a cluster for faults that operators meet: wrong addresses, clocks, versions, permissions, disks, subscriptions.

    ClusterSnapshot (what each server said, or why it did not) ─→ CHECKS ─→ Finding (what is wrong, where, what to do)

Pure: `cluster_snapshot` asks the servers, `group_findings` checks the groups. A check yields nothing where a value is unknown;
that the value is unknown is a finding of its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from ariane.access.public_ports import CERTIFICATE_DAYS_KEY, OPEN_PORTS_KEY
from ariane.cluster.diagnosis.findings import ERROR, WARNING, BrokerState, ClusterSnapshot, Finding
from ariane.cluster.diagnosis.group_findings import check_backlogs, check_dead_letters, check_subscriptions
from ariane.model.host import ip_of
from ariane.model.topic import PERM_READ, PERM_WRITE
from ariane.net.limits.quotas import EXCEEDED_LIMITS_KEY
from ariane.net.listening.certificates import WARNING_DAYS
from ariane.protocol.requests.audit import FAILURES_KEY

CLOCK_OFFSET_MAX_MS = 500  # more misleads look-ups by time and delays; brokers report their time in whole seconds
DISK_REFUSES_RATIO = 0.90  # 4.9.4 refuses writes from here on (rocketmq.broker.diskSpaceWarningLevelRatio)
DISK_DELETES_PERCENT = 75  # default of diskMaxUsedSpaceRatio: files are deleted before their time
QUEUE_WAIT_MAX_MS = 200  # default of waitTimeMillsInSendQueue: older requests are refused as "broker busy"
BEHIND_MAX_BYTES = 64 * 1024 * 1024  # a slave or the consume queues are a few seconds behind
OPEN_FILES_MIN = 4_096  # a broker has a file per queue and a socket per client
PERM_ALL = PERM_READ | PERM_WRITE
# Settings that must be equal on all masters of a cluster: messages of one topic would be treated differently.
EQUAL_SETTINGS = ("messageDelayLevel", "maxMessageSize", "defaultTopicQueueNums", "autoCreateTopicEnable", "aclEnable")


_RUNTIME = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


def diagnose(snapshot: ClusterSnapshot) -> list[Finding]:
    """Return the findings of all checks, errors first."""
    findings = [finding for check in CHECKS for finding in check(snapshot)]
    return sorted(findings, key=lambda finding: finding.level != ERROR)


# --- name servers and addresses ---


def check_name_servers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find name servers that do not respond, and brokers that are not registered with all of them."""
    registered = frozenset[str]().union(*(state.brokers or () for state in snapshot.name_servers))
    for state in snapshot.name_servers:
        if state.brokers is None:
            fix = "start it, or remove its address from -n and from the clients; check host name, port and firewall"
            yield Finding(ERROR, "name servers", state.addr, f"does not respond: {state.error}", fix)
        elif missing := sorted(registered - state.brokers):
            fix = f"add {state.addr} to namesrvAddr of {', '.join(missing)}; a broker that just started needs 30 s"
            yield Finding(ERROR, "name servers", state.addr, f"does not list {', '.join(missing)}", fix)
    if not registered and any(state.brokers is not None for state in snapshot.name_servers):
        fix = "start a broker with namesrvAddr set to these name servers"
        yield Finding(ERROR, "name servers", _addresses(snapshot), "no broker is registered", fix)


def check_addresses(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find brokers that cannot be reached at the address under which they are registered, or only from their own machine."""
    is_remote = any(not _is_loopback(state.addr) for state in snapshot.name_servers)
    names: dict[str, set[str]] = defaultdict(set)
    for state in snapshot.brokers:
        server = state.server
        names[server.addr].add(server.broker)
        subject = f"{server.broker}:{server.broker_id} {server.addr}"
        if is_remote and _is_loopback(server.addr):
            fix = "set bindAddress, and brokerIP1 behind NAT, to an address that clients reach, and restart it"
            yield Finding(ERROR, "addresses", subject, "registered as loopback: only its own machine reaches it", fix)
        elif state.runtime is None:
            yield Finding(ERROR, "addresses", subject, f"does not respond: {state.error}", _address_fix(server.addr))
    for addr, brokers in names.items():
        if len(brokers) > 1:
            fix = "give each broker an address of its own (brokerIP1, listenPort)"
            yield Finding(ERROR, "addresses", addr, f"registered by {' and '.join(sorted(brokers))}", fix)


def _address_fix(addr: str) -> str:
    host = ip_of(addr)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return f"make the name {host} resolvable here, or set brokerIP1 to an IP address; check port and firewall"
    if ip.is_private and not ip.is_loopback:
        return (
            "if it runs in a container or behind NAT, set brokerIP1 to the address of the host, publish the port, and restart it;"
            " otherwise check that it runs, and the firewall"
        )
    return "check that it runs, that brokerIP1 is its address, and the firewall"


def _is_loopback(addr: str) -> bool:
    host = ip_of(addr)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- brokers ---


def check_clocks(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find brokers whose clock differs from this machine's by more than can be explained by the measurement."""
    for state in snapshot.brokers:
        offset = clock_offset_ms(state)
        if offset is None:
            continue
        low, high = offset
        nearest = 0 if low <= 0 <= high else min(abs(low), abs(high))
        if nearest > CLOCK_OFFSET_MAX_MS:
            direction = "ahead of" if low > 0 else "behind"
            problem = f"its clock is {nearest / 1000:.1f} s or more {direction} this machine's"
            fix = (
                "synchronise both machines by NTP (chrony); times of messages, delays and look-ups by time depend on it"
            )
            yield Finding(WARNING, "clocks", _subject(state), problem, fix)


def clock_offset_ms(state: BrokerState) -> tuple[int, int] | None:
    """Return bounds of a broker's clock minus this machine's; None if unknown. Brokers report whole seconds since their start."""
    runtime = state.runtime or {}
    match = _RUNTIME.search(runtime.get("runtime", ""))
    if match is None or not runtime.get("bootTimestamp", "").isdigit():
        return None
    days, hours, minutes, seconds = map(int, match.groups())
    clock_ms = int(runtime["bootTimestamp"]) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    offset = clock_ms - state.asked_ms
    return offset - state.uncertainty_ms, offset + 1000 + state.uncertainty_ms


def check_versions(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find brokers of one cluster with different versions."""
    for cluster, states in _by_cluster(snapshot.brokers).items():
        versions: dict[str, list[str]] = defaultdict(list)
        for state in states:
            versions[(state.runtime or {}).get("brokerVersionDesc", "")].append(_subject(state))
        versions.pop("", None)
        if len(versions) > 1:
            shown = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(versions.items()))
            yield Finding(WARNING, "versions", cluster, shown, "upgrade the older brokers once the upgrade is complete")


def check_settings(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find brokers that refuse reads or writes, and settings that differ between masters of a cluster."""
    for state in snapshot.brokers:
        perm = (state.config or {}).get("brokerPermission", str(PERM_ALL))
        if perm.isdigit() and int(perm) & PERM_ALL != PERM_ALL:
            refused = "reads" if not int(perm) & PERM_READ else "writes"
            fix = f"mqadmin updateBrokerConfig -b {state.server.addr} -k brokerPermission -v 6, or addWritePerm"
            yield Finding(
                WARNING, "permissions", _subject(state), f"brokerPermission is {perm}: it refuses {refused}", fix
            )
    for cluster, states in _by_cluster(snapshot.brokers).items():
        masters = [state for state in states if state.server.is_master and state.config is not None]
        for key in EQUAL_SETTINGS:
            values: dict[str, list[str]] = defaultdict(list)
            for state in masters:
                if state.config is not None and key in state.config:
                    values[state.config[key]].append(state.server.broker)
            if len(values) > 1:
                shown = "; ".join(f"{', '.join(names)}: {value}" for value, names in values.items())
                yield Finding(
                    WARNING, "settings", cluster, f"{key} differs: {shown}", f"set {key} equally on all masters"
                )


def check_disks(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find disks so full that writes are refused, or messages are deleted before their time."""
    for state in snapshot.brokers:
        ratio = _number((state.runtime or {}).get("commitLogDiskRatio"))
        if ratio is None or ratio < 0:
            continue
        deletes = (_number((state.config or {}).get("diskMaxUsedSpaceRatio")) or DISK_DELETES_PERCENT) / 100
        fix = "free space or enlarge the disk of storePathCommitLog; shorten fileReservedTime"
        if ratio >= DISK_REFUSES_RATIO:
            yield Finding(ERROR, "disks", _subject(state), f"{ratio:.0%} used: writes are refused from 90 % on", fix)
        elif ratio >= deletes:
            problem = f"{ratio:.0%} used: messages are deleted before fileReservedTime from {deletes:.0%} on"
            yield Finding(WARNING, "disks", _subject(state), problem, fix)


def check_load(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find brokers whose sends wait, and consume queues far behind the commit log."""
    for state in snapshot.brokers:
        runtime = state.runtime or {}
        wait = _number(runtime.get("sendThreadPoolQueueHeadWaitTimeMills"))
        if wait is not None and wait > QUEUE_WAIT_MAX_MS:
            fix = "add brokers or queues, or use a faster disk; producers get SYSTEM_BUSY"
            yield Finding(WARNING, "load", _subject(state), f"the oldest send has waited {wait:.0f} ms", fix)
        behind = _number(runtime.get("dispatchBehindBytes"))
        if behind is not None and behind > BEHIND_MAX_BYTES:
            fix = "consumers do not see these messages yet; check the disk, and wait after a restart"
            yield Finding(WARNING, "load", _subject(state), f"consume queues are {behind / 2**20:.0f} MiB behind", fix)


def check_dropped_state(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find brokers that dropped invalid entries of their configuration at the start."""
    for state in snapshot.brokers:
        dropped = _number((state.runtime or {}).get("droppedStateEntries"))
        if dropped:
            fix = "see its log for the entries, and the files *.invalid-* in config/ for the former content"
            problem = f"dropped {dropped:.0f} invalid entries of topics, groups or offsets at its start"
            yield Finding(WARNING, "state", _subject(state), problem, fix)


def check_replication(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find slaves far behind, slaves without a master, and synchronous masters without a slave."""
    by_name: dict[str, list[BrokerState]] = defaultdict(list)
    for state in snapshot.brokers:
        by_name[state.server.broker].append(state)
    for name, states in by_name.items():
        master = next((state for state in states if state.server.is_master), None)
        slaves = [state for state in states if not state.server.is_master]
        if master is None:
            fix = "start the master; until then its queues accept no message and no transaction can end"
            yield Finding(ERROR, "replication", name, "only slaves are registered", fix)
            continue
        role = (master.config or {}).get("brokerRole")
        if role == "SYNC_MASTER" and not slaves:
            fix = "start a slave, or set brokerRole=ASYNC_MASTER: sends end with SLAVE_NOT_AVAILABLE"
            yield Finding(ERROR, "replication", _subject(master), "brokerRole is SYNC_MASTER without a slave", fix)
        end = _number((master.runtime or {}).get("commitLogMaxOffset"))
        for slave in slaves:
            copied = _number((slave.runtime or {}).get("commitLogMaxOffset"))
            if end is not None and copied is not None and end - copied > BEHIND_MAX_BYTES:
                fix = "check the network to brokerIP2 and haListenPort of the master, and the slave's disk"
                problem = f"{(end - copied) / 2**20:.0f} MiB behind its master"
                yield Finding(WARNING, "replication", _subject(slave), problem, fix)


# --- certificates, ports, audit logs, limits ---


def check_certificates(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find certificates that expire soon. Servers of Ariane report theirs."""
    for subject, reported in _reports(snapshot):
        days = _number(reported.get(CERTIFICATE_DAYS_KEY))
        if days is not None:
            yield from check_expiry(subject, days)


def check_expiry(subject: str, days: float) -> Iterator[Finding]:
    """Find a certificate that expires within WARNING_DAYS, or has expired: then `days` is negative."""
    if days < WARNING_DAYS:
        problem = f"its TLS certificate expires in {days:.0f} days" if days >= 0 else "its TLS certificate has expired"
        fix = "replace the files of tls.server.certPath and keyPath; the server reads them without a restart"
        yield Finding(ERROR if days < 0 else WARNING, "certificates", subject, problem, fix)


def check_open_ports(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find servers that other machines reach without access control or encryption. Servers of Ariane report it."""
    for subject, reported in _reports(snapshot):
        if problem := reported.get(OPEN_PORTS_KEY):
            fix = "set what is missing, or let only your own machines reach the ports; see docs/operations.md"
            yield Finding(WARNING, "open ports", subject, problem, fix)


def _reports(snapshot: ClusterSnapshot) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield what servers report about their ports, by key, after their names."""
    yield from ((_subject(state), state.runtime or {}) for state in snapshot.brokers)
    yield from ((state.addr, state.reported) for state in snapshot.name_servers)


def check_audit_logs(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find audit logs that could not be written. Brokers of Ariane report it."""
    for state in snapshot.brokers:
        if failures := (state.runtime or {}).get(FAILURES_KEY):
            fix = "look at its log, and at space and permissions of auditLogPath; see docs/audit.md"
            yield Finding(WARNING, "audit log", _subject(state), failures, fix)


def check_limits(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Find limits that brokers of Ariane report as exceeded, and one of open files on this machine that is too low."""
    for state in snapshot.brokers:
        if exceeded := (state.runtime or {}).get(EXCEEDED_LIMITS_KEY):
            fix = "find the client by the log or ariane_broker_limit_used, or raise the limit; see docs/limits.md"
            yield Finding(WARNING, "limits", _subject(state), f"limits were exceeded since its start: {exceeded}", fix)
    limit = snapshot.open_files_max
    if limit is not None and limit < OPEN_FILES_MIN:
        fix = "raise it: ulimit -n 65536, or LimitNOFILE= of the systemd unit"
        yield Finding(WARNING, "limits", "this machine", f"a process may open {limit} files", fix)


CHECKS: tuple[Callable[[ClusterSnapshot], Iterable[Finding]], ...] = (
    check_name_servers,
    check_addresses,
    check_replication,
    check_disks,
    check_settings,
    check_subscriptions,
    check_backlogs,
    check_dead_letters,
    check_clocks,
    check_versions,
    check_load,
    check_dropped_state,
    check_certificates,
    check_open_ports,
    check_audit_logs,
    check_limits,
)


def _by_cluster(states: Iterable[BrokerState]) -> dict[str, list[BrokerState]]:
    clusters: dict[str, list[BrokerState]] = defaultdict(list)
    for state in states:
        clusters[state.server.cluster].append(state)
    return clusters


def _subject(state: BrokerState) -> str:
    return f"{state.server.broker}:{state.server.broker_id} {state.server.addr}"


def _addresses(snapshot: ClusterSnapshot) -> str:
    return ";".join(state.addr for state in snapshot.name_servers)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
