"""Topics: create, change, delete, list, and the offsets of their queues. [UpdateTopic-, DeleteTopic-, TopicStatusSubCommand, …]"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.cluster.connection import BrokerServer, Change, ClusterConnection
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.connection_pool import ConnectionPool
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic
from ariane.protocol.requests.routing import TopicList

READ_WRITE = PERM_READ | PERM_WRITE
QUEUES = 8  # of a new topic on each broker, as Java's mqadmin creates it


class TopicOperations(ClusterConnection):
    """Operations on topics."""

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        write_queues: int | None = None,
        perm: int = READ_WRITE,
        servers: Sequence[BrokerServer] | None = None,
    ) -> list[Change]:
        """Create a topic, or change its number of queues and its permission.

        A broker registers a new topic with the name servers before it responds.

        Args:
            topic: Name of the topic.
            queues: Number of read queues on each broker.
            write_queues: Number of write queues; None: as many as read queues.
            perm: PERM_READ, PERM_WRITE, or both.
            servers: Masters that get the topic (`select_brokers`); None: all.

        Raises:
            ServerUnavailable: no master is registered.
            PartialFailure: some brokers rejected the request or did not respond.
        """
        header = CreateTopic(topic, AUTO_CREATE_TOPIC, queues, queues if write_queues is None else write_queues, perm)
        summary = f"create topic {topic}"
        targets = await self.select_brokers() if servers is None else servers
        return await self.change(
            *(Change(server.addr, summary, RequestCode.UPDATE_AND_CREATE_TOPIC, header) for server in targets)
        )

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, system topics included, sorted."""
        answer = await self.routing.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(fastjson.decode(answer.body, TopicList).topic_list)


async def create_topic(peers: ConnectionPool, namesrv: str | Sequence[str], topic: str, queues: int) -> list[str]:
    """Create a topic with `queues` queues on every master over open connections, and return the masters' addresses."""
    changes = await TopicOperations(namesrv, peers=peers).create_topic(topic, queues=queues)
    return [change.addr for change in changes]
