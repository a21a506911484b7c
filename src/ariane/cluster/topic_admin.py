"""Creates topics. A broker registers a new topic with the name servers before it responds. [UpdateTopicSubCommand]"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.errors import RouteNotFound
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.connection_pool import ConnectionPool
from ariane.net.name_servers import NameServerClient
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic


async def create_topic(peers: ConnectionPool, namesrv: str | Sequence[str], topic: str, queues: int) -> list[str]:
    """Create a topic with `queues` read and write queues on every master, or change its number of queues.

    Returns:
        The addresses of the masters.

    Raises:
        RouteNotFound: no master is registered.
        ReplyError: a broker rejected the request.
        ConnectionLost, RequestTimeout: a server did not respond.
    """
    name_servers = [namesrv] if isinstance(namesrv, str) else namesrv
    cluster = await NameServerClient(peers, name_servers).fetch_cluster()
    masters = [broker.master for broker in cluster.broker_addr_table.values() if broker.master]
    if not masters:
        raise RouteNotFound(topic, f"no broker is registered with {', '.join(name_servers)}")
    header = CreateTopic(topic, AUTO_CREATE_TOPIC, queues, queues, PERM_READ | PERM_WRITE)
    for addr in masters:
        await peers.request_ok(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return masters
