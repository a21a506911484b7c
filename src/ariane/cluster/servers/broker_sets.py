"""Broker sets with failover: their members, and planned switches of the master. (docs/failover.md)

A member reports its own view in GET_BROKER_RUNTIME_INFO. That of the master counts for the set: the others learn of it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.connection import Answers, BrokerUnavailable, Change
from ariane.cluster.servers.broker_admin import BrokerOperations
from ariane.cluster.servers.broker_runtime import RuntimeInfo
from ariane.errors import ConfigError, NotFound, ProtocolError, ServerUnavailable, UsageError
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.failover import MemberAnswer, MemberRequest

MASTER = "MASTER"  # role of the member that serves
FOLLOWER = "FOLLOWER"  # role of a member that copies its log
SWITCH_LIMIT_S = 30.0  # until a successor serves: its start, or the ttl of a lease that could not be released
POLL_S = 0.1


class SetMember(NamedTuple):
    """A broker of a set, as it reports itself."""

    name: str
    addr: str
    role: str
    """MASTER, FOLLOWER, CANDIDATE, HOLDING, RECONCILING or INELIGIBLE."""
    epoch: int
    log_end: int
    """End of its log in bytes."""
    refusal: str
    """Why it may not be promoted; empty if it may, or if it is the master."""


class BrokerSet(NamedTuple):
    """A broker set, as far as its members responded."""

    broker: str
    members: tuple[SetMember, ...]
    in_sync: tuple[str, ...]
    """Names of the members that have everything that was acknowledged, by the master; without a master by the highest epoch."""

    @property
    def master(self) -> SetMember | None:
        """The member that serves; None if none reports that it does."""
        leading = [member for member in self.members if member.role == MASTER]
        return max(leading, key=lambda member: member.epoch, default=None)

    def lag(self, member: SetMember) -> int | None:
        """Return the bytes of the master's log that a member lacks; None without a master."""
        return None if self.master is None else max(0, self.master.log_end - member.log_end)


class MasterSwitch(NamedTuple):
    """A planned switch: the members by name, and the seconds from the request until the successor served."""

    former: str
    master: str
    seconds: float


def broker_set(broker: str, runtimes: Sequence[RuntimeInfo]) -> BrokerSet | None:
    """Return the set that brokers of one name report; None if none of them has failover.

    Raises:
        ProtocolError: a broker reports invalid values.
    """
    reporting = [runtime for runtime in runtimes if "failoverRole" in runtime.table]
    members = [(_member(runtime), runtime.table.get("failoverSet", "")) for runtime in reporting]
    if not members:
        return None
    _, names = max(members, key=lambda item: (item[0].role == MASTER, item[0].epoch))
    ordered = sorted(member for member, _ in members)
    return BrokerSet(broker, tuple(ordered), tuple(filter(None, names.split(","))))


def _member(runtime: RuntimeInfo) -> SetMember:
    table = runtime.table
    try:
        return SetMember(
            table["failoverMember"],
            runtime.addr,
            table["failoverRole"],
            int(table.get("failoverEpoch", 0)),
            int(table.get("commitLogMaxOffset", 0)),
            table.get("failoverRefusal", ""),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"runtime info of {runtime.addr} has no valid state of its broker set: {error}") from error


class BrokerSetOperations(BrokerOperations):
    """Operations on broker sets."""

    async def fetch_broker_set(self, broker: str) -> tuple[BrokerSet, tuple[BrokerUnavailable, ...]]:
        """Return a broker set, and the registered brokers of that name that did not respond.

        Raises:
            NotFound: no such broker is registered.
            ConfigError: the brokers that responded have no failover.
            ServerUnavailable: none of them responded.
        """
        answers: Answers[RuntimeInfo] = await self.fetch_runtimes(
            await self.select_brokers(broker=broker, with_slaves=True)
        )
        runtimes = [runtime for _, runtime in answers.values]
        if not runtimes:
            raise ServerUnavailable("; ".join(map(str, answers.unavailable)))
        result = broker_set(broker, runtimes)
        if result is None:
            raise ConfigError(
                "failoverEndpoints", "", f"is not set at {broker}, which has no failover (docs/failover.md)"
            )
        return result, answers.unavailable

    async def switch_master(
        self, broker: str, successor: str | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> MasterSwitch | None:
        """Let another member of a broker set become its master; nothing acknowledged is lost.

        Args:
            broker: Name of the broker.
            successor: Name of a member of the in-sync set; None: the member that is elected.
            clock: Replaced by tests.

        Returns:
            The switch; None in a dry run.

        Raises:
            NotFound: the set has no member `successor`.
            UsageError: that member may not become the master now.
            ServerUnavailable: no member is the master, or no other member became it in time.
        """
        before, _ = await self.fetch_broker_set(broker)
        master = before.master
        if master is None:
            fix = "wait for its election; if none of the set in sync may lead, see ariane broker promote --accept-loss"
            raise ServerUnavailable(f"no member of {broker} is its master, so that none can hand its lease over: {fix}")
        _check_successor(before, master, successor)
        summary = f"hand the lease of {broker} over to {successor or 'another member'}"
        request = MemberRequest("handover", successor or "", 0)
        executed = await self.execute(Change(master.addr, summary, RequestCode.MEMBER_REQUEST, request))
        if self.is_dry_run:
            return None
        response = executed[0].response
        if response is None or not msgspec.json.decode(response.body, type=MemberAnswer).agrees:
            raise ServerUnavailable(f"{master.name} is not the master of {broker} any more: nothing was changed")
        return await self.wait_for_master(broker, master.epoch, master.name, clock)

    async def wait_for_master(self, broker: str, epoch: int, former: str, clock: Clock) -> MasterSwitch:
        """Wait for a master of a higher epoch than `epoch`, that of `former`.

        Raises:
            ServerUnavailable: no member became it in time.
        """
        started = clock.monotonic()
        servers = await self.select_brokers(broker=broker, with_slaves=True)
        while clock.monotonic() - started < SWITCH_LIMIT_S:
            await clock.sleep(POLL_S)
            answers = await self.fetch_runtimes(servers)
            now = broker_set(broker, [runtime for _, runtime in answers.values])
            if now is not None and now.master is not None and now.master.epoch > epoch:
                return MasterSwitch(former, now.master.name, clock.monotonic() - started)
        raise ServerUnavailable(
            f"no member of {broker} became the master within {SWITCH_LIMIT_S:g} s: see ariane cluster status"
        )


def _check_successor(brokers: BrokerSet, master: SetMember, successor: str | None) -> None:
    others = {member.name: member for member in brokers.members if member != master}
    if successor is None:
        if not any(name in brokers.in_sync for name in others):
            raise ServerUnavailable(f"{master.name} is the only member of the in-sync set of {brokers.broker}")
        return
    if successor == master.name:
        raise UsageError("--to", successor, f"is the master of {brokers.broker} already")
    member = others.get(successor)
    if member is None:
        raise NotFound("member", successor, sorted(others))
    if successor not in brokers.in_sync:
        raise UsageError(
            "--to", successor, f"is not in the in-sync set of {brokers.broker}: {', '.join(brokers.in_sync)}"
        )
    if member.refusal:
        raise UsageError("--to", successor, f"may not become the master: {member.refusal}")
