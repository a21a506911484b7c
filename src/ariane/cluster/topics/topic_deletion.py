"""Deletion of topics: masters, then their slaves, then the route at the name servers. [DeleteTopicSubCommand]

The order matters: a broker that still has a topic registers it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.cluster.connection import BrokerServer, Change, ClusterConnection
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import TopicRef
from ariane.protocol.requests.routing import DeleteTopicRoute


class TopicDeletionOperations(ClusterConnection):
    """Steps of the deletion of a topic."""

    async def delete_stored_topic(self, topic: str, servers: Sequence[BrokerServer]) -> list[Change]:
        """Delete a topic with its messages from these servers, masters first. Its route stays.

        A slave copies the deletion from its master: an Ariane slave at once when it is asked, an Apache slave, which rejects the
        request, within 10 s. The failure of a slave whose master is among the servers is a note.

        Raises:
            PartialFailure, ReplyError, ConnectionLost, RequestTimeout: as `change`.
        """
        masters = {server.broker for server in servers if server.is_master}
        return await self.change(
            *(
                Change(
                    server.addr,
                    f"delete topic {topic}",
                    RequestCode.DELETE_TOPIC_IN_BROKER,
                    TopicRef(topic),
                    is_optional=not server.is_master and server.broker in masters,
                )
                for server in sorted(servers, key=lambda server: not server.is_master)
            )
        )

    async def delete_route(self, topic: str, cluster: str | None) -> list[Change]:
        """Delete the route of a topic from all name servers.

        Args:
            topic: Name of the topic.
            cluster: Only its queues on brokers of this cluster; None: all.

        Raises:
            PartialFailure, ReplyError, ConnectionLost, RequestTimeout: as `change`.
        """
        summary, header = f"delete the route of topic {topic}", DeleteTopicRoute(topic, cluster)
        code = RequestCode.DELETE_TOPIC_IN_NAMESRV
        return await self.change(*(Change(addr, summary, code, header) for addr in self.name_servers))
