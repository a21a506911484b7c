"""Every check of `ariane doctor`: a sound cluster has no finding, and each fault has its own."""

from __future__ import annotations

import pytest

from ariane.cluster.connection import BrokerServer
from ariane.cluster.diagnosis.cluster_checks import clock_offset_ms, diagnose
from ariane.cluster.diagnosis.findings import (
    ERROR,
    WARNING,
    Backlog,
    BrokerState,
    ClientState,
    ClusterSnapshot,
    ConsumerGroupState,
    DeadLetters,
    Finding,
    NameServerState,
)
from ariane.cluster.groups.consumer_status import BlockedQueue
from ariane.model.message import MessageQueue

NOW_MS = 1_800_000_000_000
MASTER = BrokerServer("C", "a", 0, "10.0.0.2:10911")
SLAVE = BrokerServer("C", "a", 1, "10.0.0.3:10911")
RUNTIME = {
    "bootTimestamp": str(NOW_MS - 90_061_500),
    "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]",
    "brokerVersionDesc": "V4_9_4",
    "commitLogDiskRatio": "0.4",
    "commitLogMaxOffset": "1000000000",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "dispatchBehindBytes": "0",
}
CONFIG = {
    "brokerPermission": "6",
    "brokerRole": "SYNC_MASTER",
    "diskMaxUsedSpaceRatio": "75",
    "maxMessageSize": "4194304",
}


def broker(server: BrokerServer = MASTER, config: dict[str, str] | None = None, **runtime: str) -> BrokerState:
    return BrokerState(server, RUNTIME | runtime, CONFIG | (config or {}), "", NOW_MS, 2)


def snapshot(
    *brokers: BrokerState,
    name_servers: tuple[NameServerState, ...] = (),
    groups: dict[str, ConsumerGroupState] | None = None,
    files: int | None = 65_536,
) -> ClusterSnapshot:
    states = brokers or (broker(), broker(SLAVE))
    servers = name_servers or (NameServerState("10.0.0.1:9876", frozenset(state.server.addr for state in states)),)
    return ClusterSnapshot(servers, states, groups or {}, files)


def reporting(**texts: str) -> ClusterSnapshot:
    """Return a cluster whose name server reports something about its port."""
    servers = frozenset({MASTER.addr, SLAVE.addr})
    return snapshot(name_servers=(NameServerState("10.0.0.1:9876", servers, reported=texts),))


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_sound_cluster_has_no_finding() -> None:
    members = (ClientState("1@x", "395", {"T": "*"}), ClientState("2@x", "395", {"T": "*"}))
    assert diagnose(snapshot(groups={"G": ConsumerGroupState(2, members)})) == []


FAULTS = [
    (snapshot(broker(commitLogDiskRatio="0.93"), broker(SLAVE)), ERROR, "disks", "93%", "free space"),
    (snapshot(broker(commitLogDiskRatio="0.80"), broker(SLAVE)), WARNING, "disks", "from 75% on", "free space"),
    (snapshot(broker(droppedStateEntries="7"), broker(SLAVE)), WARNING, "state", "7 invalid entries", "*.invalid-*"),
    (snapshot(broker(certificateRemainingDays="29"), broker(SLAVE)), WARNING, "certificates", "expires in 29 days", "certPath"),
    (snapshot(broker(certificateRemainingDays="-1"), broker(SLAVE)), ERROR, "certificates", "has expired", "certPath"),
    (snapshot(broker(sendThreadPoolQueueHeadWaitTimeMills="900"), broker(SLAVE)), WARNING, "load", "900 ms", "SYSTEM_BUSY"),
    (snapshot(broker(dispatchBehindBytes="999999999"), broker(SLAVE)), WARNING, "load", "954 MiB", "consumers"),
    (snapshot(broker(), broker(SLAVE, commitLogMaxOffset="1000")), WARNING, "replication", "954 MiB behind", "haListenPort"),
    (snapshot(broker()), ERROR, "replication", "SYNC_MASTER without a slave", "ASYNC_MASTER"),
    (snapshot(broker(SLAVE)), ERROR, "replication", "only slaves", "start the master"),
    (snapshot(broker(), broker(SLAVE, brokerVersionDesc="V4_5_2")), WARNING, "versions", "V4_5_2: a:1", "upgrade"),
    (snapshot(broker(config={"brokerPermission": "4"}), broker(SLAVE)), WARNING, "permissions", "writes", "addWritePerm"),
    (snapshot(broker(exceededLimits="serverTopicsMax 3"), broker(SLAVE)), WARNING, "limits", "serverTopicsMax 3", "limits.md"),
    (
        snapshot(broker(auditLogFailures="3 writes failed since its start"), broker(SLAVE)),
        WARNING, "audit log", "3 writes failed", "auditLogPath",
    ),
    (snapshot(files=1024), WARNING, "limits", "1024 files", "ulimit -n"),
    (
        snapshot(name_servers=(NameServerState("10.0.0.9:9876", None, "refused"),)),
        ERROR, "name servers", "refused", "firewall",
    ),
    (reporting(certificateRemainingDays="0"), WARNING, "certificates", "expires in 0 days", "keyPath"),
    (reporting(certificateRemainingDays="-3"), ERROR, "certificates", "has expired", "without a restart"),
    (reporting(openToOtherMachines="connections are plain"), WARNING, "open ports", "connections are plain", "operations.md"),
    (
        snapshot(BrokerState(MASTER, None, None, "timed out")), ERROR, "addresses", "timed out", "brokerIP1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("faulty", "level", "check", "problem", "fix"), FAULTS)
def test_each_fault_has_one_finding_with_its_fix(
    faulty: ClusterSnapshot, level: str, check: str, problem: str, fix: str
) -> None:
    finding = only(diagnose(faulty))
    assert (finding.level, finding.check) == (level, check)
    assert problem in finding.problem
    assert fix in finding.fix


def test_a_broker_that_one_name_server_does_not_list_is_found() -> None:
    listed = frozenset({MASTER.addr, SLAVE.addr})
    servers = (NameServerState("ns1:9876", listed), NameServerState("ns2:9876", frozenset({MASTER.addr})))
    finding = only(diagnose(snapshot(name_servers=servers)))
    assert (finding.subject, finding.problem) == ("ns2:9876", f"does not list {SLAVE.addr}")


def test_a_loopback_address_is_wrong_only_where_the_name_server_is_elsewhere() -> None:
    local = BrokerServer("C", "a", 0, "127.0.0.1:10911")
    state = broker(local, {"brokerRole": "ASYNC_MASTER"})
    registered = frozenset({local.addr})
    assert diagnose(snapshot(state, name_servers=(NameServerState("127.0.0.1:9876", registered),))) == []
    finding = only(diagnose(snapshot(state, name_servers=(NameServerState("10.0.0.1:9876", registered),))))
    assert (finding.level, finding.check) == (ERROR, "addresses")
    assert "brokerIP1" in finding.fix


@pytest.mark.parametrize(
    ("addr", "fix"),
    [("broker-a:1", "name broker-a resolvable"), ("172.17.0.2:1", "container"), ("8.8.8.8:1", "firewall")],
)
def test_the_fix_of_an_unreachable_address_depends_on_its_kind(addr: str, fix: str) -> None:
    state = BrokerState(BrokerServer("C", "a", 0, addr), None, None, "refused")
    assert fix in only(diagnose(snapshot(state))).fix


def test_two_brokers_with_one_address_are_found() -> None:
    other = BrokerServer("C", "b", 0, MASTER.addr)
    quiet = {"brokerRole": "ASYNC_MASTER"}
    finding = only(diagnose(snapshot(broker(config=quiet), broker(other, quiet))))
    assert (finding.subject, finding.problem) == (MASTER.addr, "registered by a and b")


def test_settings_that_differ_between_masters_are_found() -> None:
    other = BrokerServer("C", "b", 0, "10.0.0.4:10911")
    quiet = {"brokerRole": "ASYNC_MASTER"}
    finding = only(diagnose(snapshot(broker(config=quiet), broker(other, quiet | {"maxMessageSize": "65536"}))))
    assert finding.problem == "maxMessageSize differs: a: 4194304; b: 65536"


def test_members_with_different_subscriptions_are_found_and_silent_ones_are_not_counted() -> None:
    members = (ClientState("1", "", {"T": "A"}), ClientState("2", "", {"T": "B"}), ClientState("3", "", None))
    finding = only(
        diagnose(snapshot(groups={"G": ConsumerGroupState(3, members), "H": ConsumerGroupState(1, members[2:])}))
    )
    assert (finding.level, finding.subject) == (ERROR, "G")
    assert finding.problem == "members differ: 1: T A; 2: T B"


QUEUE = MessageQueue("T", "a", 0)
BLOCKED = (BlockedQueue("c1", QUEUE, "not consuming", 300_000),)
MINUTE_MS = 60_000


@pytest.mark.parametrize(
    "state",
    [
        ConsumerGroupState(1, backlog=Backlog(1_000_000, False, 59_000)),  # a burst
        ConsumerGroupState(
            1, backlog=Backlog(1_000_000, False, 9 * MINUTE_MS, growth=-5_000, arrived=1_000)
        ),  # catches up
        ConsumerGroupState(
            1, backlog=Backlog(1_000, False, 9 * MINUTE_MS, growth=500, arrived=1_000)
        ),  # commits every 5 s
        ConsumerGroupState(0, backlog=Backlog(1_000, False, 9 * MINUTE_MS)),  # restarts
        ConsumerGroupState(1, backlog=Backlog(1_000, False, None)),  # of an unknown age
        ConsumerGroupState(1, backlog=None, blocked=BLOCKED),  # nothing is pending
        ConsumerGroupState(1, backlog=Backlog(3, False, 5_000), blocked=BLOCKED),  # by the client's clock alone
        ConsumerGroupState(1, dead_letters=DeadLetters(7, 61 * MINUTE_MS, 0)),
    ],
)
def test_a_lag_alone_is_no_finding(state: ConsumerGroupState) -> None:
    assert diagnose(snapshot(groups={"G": state})) == []


@pytest.mark.parametrize(
    ("state", "problem", "fix"),
    [
        (
            ConsumerGroupState(2, backlog=Backlog(1_200, False, 192 * MINUTE_MS)),
            "1,200 messages pending, the oldest for 3 h 12 min", "group lag G",
        ),
        (
            ConsumerGroupState(None, backlog=Backlog(1, True, 10 * MINUTE_MS)),
            "at least 1 message pending, the oldest for 10 min", "group lag G",
        ),
        (
            ConsumerGroupState(1, backlog=Backlog(5_000, False, 2 * MINUTE_MS, growth=501, arrived=1_000)),
            "5,000 messages pending, the oldest for 2 min; 501 more than 10 s before", "add consumers",
        ),
        (
            ConsumerGroupState(1, backlog=Backlog(41, False, MINUTE_MS), blocked=BLOCKED),
            "1 queue blocked for 5 min (not consuming) in c1; 41 messages pending, the oldest for 1 min", "-i c1 -s",
        ),
        (
            ConsumerGroupState(0, backlog=Backlog(9, False, 11 * MINUTE_MS)),
            "no client is connected; most of all G: 9 messages pending, the oldest for 11 min", "start the consumers",
        ),
    ],
)  # fmt: skip
def test_a_backlog_that_is_old_grows_or_is_blocked_is_one_finding(
    state: ConsumerGroupState, problem: str, fix: str
) -> None:
    finding = only(diagnose(snapshot(groups={"G": state})))
    assert (finding.level, finding.check, finding.subject) == (WARNING, "backlog", "G")
    assert finding.problem == problem
    assert fix in finding.fix


def test_offline_groups_with_a_backlog_are_one_finding() -> None:
    groups = {
        f"g{number:02}": ConsumerGroupState(0, backlog=Backlog(number, False, number * 60 * MINUTE_MS))
        for number in range(1, 13)
    }
    finding = only(diagnose(snapshot(groups=groups)))
    assert finding.subject == ", ".join(sorted(groups)[:10]) + " and 2 more (ariane group list)"
    assert "most of all g12: 12 messages pending, the oldest for 12 h" in finding.problem


def test_dead_letters_that_arrive_are_a_finding() -> None:
    letters = DeadLetters(1_234, 2 * MINUTE_MS, 17)
    finding = only(diagnose(snapshot(groups={"G": ConsumerGroupState(1, dead_letters=letters)})))
    assert (finding.level, finding.check, finding.subject) == (WARNING, "dead letters", "G")
    assert finding.problem == "17 in the last hour, the last one 2 min ago; 1,234 dead letters stored"
    assert "ariane dead-letter list G" in finding.fix
    unknown = letters._replace(stored=None, last_hour=None)
    assert (
        only(diagnose(snapshot(groups={"G": ConsumerGroupState(1, dead_letters=unknown)}))).problem
        == "the last one 2 min ago"
    )


def test_errors_come_first() -> None:
    findings = diagnose(snapshot(broker(commitLogDiskRatio="0.8"), broker(SLAVE, commitLogDiskRatio="0.95"), files=10))
    assert [finding.level for finding in findings] == [ERROR, WARNING, WARNING]


@pytest.mark.parametrize(
    ("shift_ms", "is_found"), [(0, False), (400, False), (-900, False), (2_600, True), (-3_000, True)]
)
def test_a_clock_is_wrong_only_if_whole_seconds_and_the_request_cannot_explain_it(
    shift_ms: int, is_found: bool
) -> None:
    state = broker(bootTimestamp=str(NOW_MS - 90_061_500 + shift_ms))
    low, high = clock_offset_ms(state) or (0, 0)
    assert (low, high) == (shift_ms - 502, shift_ms + 502)
    findings = diagnose(snapshot(state, broker(SLAVE)))
    assert bool(findings) == is_found
    if is_found:
        assert ("ahead of" if shift_ms > 0 else "behind") in findings[0].problem


def test_unknown_values_are_no_findings() -> None:
    empty = BrokerState(MASTER, {}, None, "", NOW_MS, 2)
    assert clock_offset_ms(empty) is None
    assert diagnose(snapshot(empty, broker(SLAVE))) == []
