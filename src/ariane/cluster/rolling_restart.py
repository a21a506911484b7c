"""Rolling restarts: one server after the other, while producers send to the others.

without failover   drain the master ─→ restart its slaves, one by one ─→ restart the master ─→ restore its write permission
with failover      restart the members that follow, one by one ─→ switch the master ─→ restart the former master

A server counts as restarted when it reports another start time, and, as a slave or member, has everything that its master had. A
SYNC_MASTER does not before a slave has everything.
Who starts it is the caller's: a command, or a supervisor while the restart waits.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

from ariane.clock import SYSTEM_CLOCK, Clock
from ariane.cluster.connection import REFRESH_MARGIN_S, ROUTE_REFRESH_S, BrokerServer
from ariane.cluster.servers.broker_runtime import RuntimeInfo
from ariane.cluster.servers.broker_sets import FOLLOWER, BrokerSet, BrokerSetOperations, broker_set
from ariane.cluster.topics.topic_queries import TopicQueries, is_of_group
from ariane.errors import ArianeError, ServerUnavailable
from ariane.model.topic import is_system_topic
from ariane.protocol.records.member_stream import WAITS_FOR_SLAVES_KEY

QUIET_S = 30.0  # for the last sends to a drained broker, when all producers have its new route
SETTLE_S = 5.0  # between two pauses of a broker set: a send waits for one of them within its timeout (3 s), not for two
RESTART_S = 600.0  # until a server runs again and has everything: the limit of one restart
POLL_S = 0.5


class RestartStep(NamedTuple):
    """A step of a rolling restart."""

    action: Literal["drain", "restart", "switch", "restore"]
    server: BrokerServer
    member: str = ""
    """Name of the member of a broker set with failover."""

    def __str__(self) -> str:
        broker = self.server.broker
        if self.action == "drain":
            return f"remove the write permission of {broker}, and wait until producers have moved"
        if self.action == "restore":
            return f"restore the write permission of {broker}"
        if self.action == "switch":
            return f"switch the master of {broker} from {self.member} to another member"
        role = self.member or ("master" if self.server.is_master else f"slave {self.server.broker_id}")
        return f"restart {broker} ({role}) at {self.server.addr}"


class RestartPlan(NamedTuple):
    """The steps, and the topics that cannot be written while their only broker is drained, by broker name."""

    steps: tuple[RestartStep, ...]
    only_there: dict[str, tuple[str, ...]]


class RestartOperations(BrokerSetOperations, TopicQueries):
    """Rolling restarts."""

    async def plan_restart(self, *, cluster: str | None = None, brokers: Sequence[str] = ()) -> RestartPlan:
        """Return the steps that restart brokers with their slaves.

        Args:
            cluster: Only brokers of this cluster.
            brokers: Names of brokers; empty: all.

        Raises:
            NotFound: no such cluster or broker is registered.
            ServerUnavailable: a server does not respond, a broker has no master, or a member is not in sync.
        """
        servers: list[BrokerServer] = []
        for name in brokers or (None,):
            servers += await self.select_brokers(cluster=cluster, broker=name, with_slaves=True)
        answers = await self.fetch_runtimes(servers)
        if answers.unavailable:
            raise ServerUnavailable("; ".join(map(str, answers.unavailable)))
        runtimes = dict(answers.values)
        steps: list[RestartStep] = []
        drained = []
        for name in sorted({server.broker for server in servers}):
            members = [server for server in servers if server.broker == name]
            state = broker_set(name, [runtimes[server] for server in members])
            if state is not None:
                steps += _set_steps(state, {server.addr: server for server in members})
            else:
                steps += _broker_steps(name, members)
                drained.append(name)
        return RestartPlan(tuple(steps), await self._only_there(drained))

    async def _only_there(self, drained: Sequence[str]) -> dict[str, tuple[str, ...]]:
        summaries, _ = await self.list_summaries()
        only: dict[str, tuple[str, ...]] = {}
        for name in drained:
            topics = [
                summary.topic
                for summary in summaries
                if summary.brokers == (name,)
                and not is_of_group(summary.topic)
                and not is_system_topic(summary.topic)
                and summary.topic not in (name, summary.cluster)
            ]
            if topics:
                only[name] = tuple(sorted(topics))
        return only

    async def execute_restart(
        self,
        steps: Sequence[RestartStep],
        restart: Callable[[RestartStep], Awaitable[None]],
        report: Callable[[str], None],
        *,
        route_refresh_s: float = ROUTE_REFRESH_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Execute the steps of a plan one after another.

        Args:
            steps: The steps.
            restart: Starts a server again, or returns at once if someone else does.
            report: Called with each step before it begins.
            route_refresh_s: Longest interval in which a client fetches routes.
            clock: Replaced by tests.

        Raises:
            ServerUnavailable: a step did not succeed in time. A drained broker stays drained.
        """
        for step in steps:
            report(str(step))
            if step.action == "drain":
                await self.set_broker_writable(step.server.broker, False)
                await clock.sleep(route_refresh_s + REFRESH_MARGIN_S)
                await self._wait_quiet(step.server, report, clock)
            elif step.action == "restore":
                await self.set_broker_writable(step.server.broker, True)
            elif step.action == "switch":
                result = await self.switch_master(step.server.broker, clock=clock)
                assert result is not None  # not a dry run
                report(f"{result.master} is the master of {step.server.broker}, after {result.seconds:.1f} s")
                # It opens its store again as a follower, which looks like a restart.
                await self._wait(functools.partial(self._has_everything, step), f"{step.member} to be in sync", clock)
            else:
                await self._restart(step, restart, clock)
            if step.member:
                await clock.sleep(SETTLE_S)

    async def _wait_quiet(self, server: BrokerServer, report: Callable[[str], None], clock: Clock) -> None:
        deadline = clock.monotonic() + QUIET_S
        before = -1
        while (count := (await self.fetch_runtime(server.addr)).put_today) != before:
            if clock.monotonic() > deadline:
                # Retries of consumers, delayed messages and clients with fixed routes do not follow permissions.
                report(f"{server.broker} still stores messages: going on")
                return
            before = count
            await clock.sleep(POLL_S)

    async def _restart(
        self, step: RestartStep, restart: Callable[[RestartStep], Awaitable[None]], clock: Clock
    ) -> None:
        before = await self.fetch_runtime(step.server.addr)
        await restart(step)

        async def is_restarted() -> bool:
            runtime = await self.fetch_runtime(step.server.addr)
            return runtime.boot_ms != before.boot_ms and await self._has_everything(step)

        await self._wait(is_restarted, f"{step.server.broker} at {step.server.addr} to run and to be in sync", clock)

    async def _wait(self, reached: Callable[[], Awaitable[bool]], condition: str, clock: Clock) -> None:
        deadline = clock.monotonic() + RESTART_S
        while clock.monotonic() < deadline:
            try:
                if await reached():
                    return
            except ArianeError:
                pass  # it does not run yet, or no master is registered
            await clock.sleep(POLL_S)
        raise ServerUnavailable(f"waited {RESTART_S:g} s for {condition}: see `ariane cluster status`")

    async def _has_everything(self, step: RestartStep) -> bool:
        server = step.server
        if step.member:
            state, _ = await self.fetch_broker_set(server.broker)
            return _follows(state, step.member)
        registered = await self.select_brokers(broker=server.broker, with_slaves=True)
        if server not in registered:
            return False
        if server.is_master:
            return WAITS_FOR_SLAVES_KEY not in (await self.fetch_runtime(server.addr)).table
        master = next(other for other in registered if other.is_master)
        return _log_end(await self.fetch_runtime(server.addr)) >= _log_end(await self.fetch_runtime(master.addr))


def _follows(state: BrokerSet, name: str) -> bool:
    """Return whether a member follows the master of its set.

    The set alone does not say it: a former master stays in it, and is waited for, before it has connected to the new one.
    """
    master = state.master
    member = next((member for member in state.members if member.name == name), None)
    if master is None or member is None or name not in state.in_sync:
        return False
    return member.role == FOLLOWER and member.epoch == master.epoch


def _log_end(runtime: RuntimeInfo) -> int:
    return int(runtime.table.get("commitLogMaxOffset", 0))


def _broker_steps(broker: str, members: Sequence[BrokerServer]) -> list[RestartStep]:
    masters = [server for server in members if server.is_master]
    if not masters:
        raise ServerUnavailable(f"no master of {broker} is registered: start it first")
    slaves = [RestartStep("restart", server) for server in members if not server.is_master]
    # Slaves within the drain: without a slave, a synchronous master answers sends with 11.
    master = masters[0]
    restarts = [*slaves, RestartStep("restart", master)]
    return [RestartStep("drain", master), *restarts, RestartStep("restore", master)]


def _set_steps(state: BrokerSet, servers: dict[str, BrokerServer]) -> list[RestartStep]:
    master = state.master
    if master is None:
        raise ServerUnavailable(f"no member of {state.broker} is its master: see `ariane cluster status`")
    if late := [member.name for member in state.members if member.name not in state.in_sync]:
        raise ServerUnavailable(
            f"{', '.join(late)} of {state.broker}: not in sync; wait, or see `ariane cluster status`"
        )
    if len(state.members) < 2:
        raise ServerUnavailable(f"{state.broker} has only the member {master.name}: no other one can become its master")
    followers = [member for member in state.members if member != master]
    steps = [RestartStep("restart", servers[member.addr], member.name) for member in followers]
    former = servers[master.addr]
    return [*steps, RestartStep("switch", former, master.name), RestartStep("restart", former, master.name)]
