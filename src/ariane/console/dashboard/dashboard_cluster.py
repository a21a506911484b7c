"""/cluster of Apache's dashboard: brokers with their runtime values and settings."""

from __future__ import annotations

from ariane.console.dashboard.formats.envelope import DashboardRouter
from ariane.console.dashboard.formats.json_shapes import UNSPECIFIED, Json, broker_shape
from ariane.console.dashboard.formats.request_parameters import Parameters
from ariane.console.web.dependencies import ClusterAdmin
from ariane.errors import ServerUnavailable

routes = DashboardRouter("/cluster")

MESSAGE_TYPES = ("DELAY", "FIFO", "MIXED", "NORMAL", "TRANSACTION", UNSPECIFIED)


@routes.get("/list.query")
async def list_clusters(admin: ClusterAdmin) -> Json:
    """Return all brokers. The runtime values of a server that does not respond are null; Apache's answer fails then."""
    info = await admin.fetch_cluster()
    servers = await admin.select_brokers(with_slaves=True)
    answers = await admin.fetch_runtimes(servers)
    tables = {server: runtime.table for server, runtime in answers.values}
    runtimes: dict[str, Json] = {}
    for server in servers:
        runtimes.setdefault(server.broker, {})[str(server.broker_id)] = tables.get(server)
    return {
        "brokerServer": runtimes,
        "clusterInfo": {
            "brokerAddrTable": {name: broker_shape(data) for name, data in info.broker_addr_table.items()},
            "clusterAddrTable": {name: sorted(brokers) for name, brokers in info.cluster_addr_table.items()},
        },
        # Keys of the dashboard's translations.
        "messageTypes": {name: f"MESSAGE_TYPE_{name}" for name in MESSAGE_TYPES},
    }


@routes.get("/brokerConfig.query")
async def broker_config(admin: ClusterAdmin, parameters: Parameters) -> dict[str, str]:
    """Return the settings of a broker."""
    answers = await admin.fetch_broker_config(await admin.select_brokers(broker=parameters.text("brokerAddr")))
    if answers.unavailable:
        raise ServerUnavailable(str(answers.unavailable[0]))
    return answers.values[0][1]
