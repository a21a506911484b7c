"""Topics: made on a broker, and known to the name servers once it answers. [UpdateTopicSubCommand]"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.errors import RouteNotFound
from ariane.model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from ariane.net.connection_pool import ConnectionPool
from ariane.net.name_servers import NameServerClient
from ariane.protocol.codes import RequestCode
from ariane.protocol.requests.admin import CreateTopic


async def create_topic(peers: ConnectionPool, namesrv: str | Sequence[str], topic: str, queues: int) -> list[str]:
    """Make `topic` with `queues` readable and writable queues on every master that `namesrv` knows; their addresses.

    A topic that is there gets that many queues. RouteNotFound when no broker is registered, ReplyError when one refuses.
    """
    name_servers = [namesrv] if isinstance(namesrv, str) else namesrv
    brokers = (await NameServerClient(peers, name_servers).fetch_cluster()).broker_addr_table.values()
    masters = [broker.master for broker in brokers if broker.master]
    if not masters:
        raise RouteNotFound(topic, f"no broker is registered with {', '.join(name_servers)} that it could be made on")
    header = CreateTopic(topic, AUTO_CREATE_TOPIC, queues, queues, PERM_READ | PERM_WRITE)
    for addr in masters:
        await peers.request_ok(addr, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return masters
