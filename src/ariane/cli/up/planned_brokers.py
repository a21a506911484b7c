"""Which brokers `ariane up` runs: their names, directories and settings. Pure.

--brokers 2               broker (broker-a), broker-b
--brokers 2 --slaves      the same, and slave (of broker-a), slave-b
--brokers 2 --failover    broker-a1 broker-a2 broker-a3, broker-b1 broker-b2 broker-b3: three members of each broker set
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ariane.net.listening.fixed_ports import LOOPBACK

BROKERS_MAX = 8
PORTS_PER_BROKER = 10  # between the ports of two brokers: each takes three
MEMBERS = 3  # of a broker set: two of them keep a majority of copies while one is down
MIN_IN_SYNC = 2


class PlannedBroker(NamedTuple):
    """A broker process."""

    process: str
    """Name of the process, of its log, and of its configuration file."""
    store: str
    """Directory of its store, in the home."""
    settings: Mapping[str, str]
    """Settings that distinguish it from the other brokers."""
    is_optional: bool = False
    """Whether the others work without it."""

    @property
    def broker(self) -> str:
        return self.settings["brokerName"]

    @property
    def member(self) -> str:
        """Name of this member of a broker set; empty without failover."""
        return self.settings.get("memberName", "")


def plan_brokers(count: int, *, has_slaves: bool, has_failover: bool) -> list[PlannedBroker]:
    """Return the brokers, masters before slaves, in the order of their ports."""
    letters = [chr(ord("a") + number) for number in range(count)]
    if has_failover:
        return [_member(letter, number) for letter in letters for number in range(1, MEMBERS + 1)]
    # The first broker has the names that a home had before it could have several.
    suffixes = ["" if letter == "a" else f"-{letter}" for letter in letters]
    names = [f"broker-{letter}" for letter in letters]
    masters = [
        PlannedBroker(f"broker{suffix}", f"store{suffix}", {"brokerName": name})
        for name, suffix in zip(names, suffixes, strict=True)
    ]
    slaves = [
        PlannedBroker(
            f"slave{suffix}",
            f"store-slave{suffix}",
            {"brokerName": name, "brokerRole": "SLAVE", "brokerId": "1"},
            is_optional=True,
        )
        for name, suffix in zip(names, suffixes, strict=True)
    ]
    return [*masters, *(slaves if has_slaves else ())]


def failover_keys(planned: PlannedBroker, ports: Mapping[str, int], etcd: str) -> dict[str, str]:
    """Return the settings of a member that depend on the ports of this run.

    Args:
        ports: Ports of all processes by name.
    """
    letter = planned.member[0]
    names = [f"{letter}{number}" for number in range(1, MEMBERS + 1)]
    members = ";".join(f"{name}={LOOPBACK}:{ports[f'broker-{name}']}" for name in names)
    return {"failoverEndpoints": f"http://{etcd}", "failoverMembers": members}


def _member(letter: str, number: int) -> PlannedBroker:
    member = f"{letter}{number}"
    settings = {
        "brokerName": f"broker-{letter}",
        "brokerRole": "SYNC_MASTER",
        "brokerId": str(number),
        "memberName": member,
        "minInSyncReplicas": str(MIN_IN_SYNC),
    }
    return PlannedBroker(f"broker-{member}", f"store-{member}", settings)
