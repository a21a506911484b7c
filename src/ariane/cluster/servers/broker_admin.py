"""Brokers: runtime state, configuration, and cleaning of their stores. [broker.*SubCommand, ClusterListSubCommand]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ariane.cluster.connection import Answers, BrokerServer, Change, ClusterConnection
from ariane.cluster.servers.broker_runtime import RuntimeInfo, parse_runtime
from ariane.protocol import fastjson, java_properties
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.routing import KvTableBody


class BrokerOperations(ClusterConnection):
    """Operations on brokers as a whole."""

    async def fetch_runtime(self, addr: str) -> RuntimeInfo:
        """Return the runtime state of the broker at `addr`.

        Raises:
            ProtocolError: required values are missing.
        """
        answer = await self.request(addr, RequestCode.GET_BROKER_RUNTIME_INFO)
        return parse_runtime(addr, fastjson.decode(answer.body, KvTableBody).table)

    async def fetch_runtimes(self, servers: Sequence[BrokerServer] | None = None) -> Answers[RuntimeInfo]:
        """Return the runtime state of several servers; None: of all masters and slaves."""
        targets = await self.select_brokers(with_slaves=True) if servers is None else servers
        return await self.ask_all(targets, lambda server: self.fetch_runtime(server.addr))

    async def fetch_broker_config(self, servers: Sequence[BrokerServer]) -> Answers[dict[str, str]]:
        """Return the settings of several servers, sorted by key."""

        async def ask(server: BrokerServer) -> dict[str, str]:
            answer = await self.request(server.addr, RequestCode.GET_BROKER_CONFIG)
            return dict(sorted(java_properties.parse(answer.body.decode()).items()))

        return await self.ask_all(servers, ask)

    async def update_broker_config(self, settings: Mapping[str, str], servers: Sequence[BrokerServer]) -> list[Change]:
        """Change settings of several brokers while they run; they are stored in the brokers' configuration files.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
            ReplyError: the only broker rejected it, for example because the setting cannot change at run time.
        """
        summary = "set " + ", ".join(f"{key} = {value}" for key, value in settings.items())
        body = java_properties.write(settings).encode()
        return await self.change_each(servers, summary, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def delete_expired_queues(self, servers: Sequence[BrokerServer]) -> list[Change]:
        """Delete consume-queue files whose messages are no longer in the commit log.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
        """
        return await self.change_each(
            servers, "delete expired consume-queue files", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
        )

    async def delete_expired_commit_log(self, servers: Sequence[BrokerServer]) -> list[Change]:
        """Delete commit-log files that are older than the brokers' retention time now, instead of at the hour set for it.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
        """
        return await self.change_each(servers, "delete expired commit-log files", RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def delete_unused_queues(self, servers: Sequence[BrokerServer]) -> list[Change]:
        """Delete the consume queues of topics that no longer exist.

        Raises:
            PartialFailure: some brokers rejected the request or did not respond.
        """
        return await self.change_each(servers, "delete queues of unused topics", RequestCode.CLEAN_UNUSED_TOPIC)
