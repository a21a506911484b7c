"""/ops, /rocketmq, /proxy, /test and /acl of the dashboard: settings of the dashboard itself, features of RocketMQ 5.

The console's own settings are fixed when it starts. A request that would leave them as they are succeeds; others say what to do.
"""

from __future__ import annotations

from fastapi.responses import PlainTextResponse

from ariane.console.dashboard.dashboard_topics import loaded_snapshot
from ariane.console.dashboard.formats.envelope import DashboardRouter
from ariane.console.dashboard.formats.json_shapes import Json
from ariane.console.dashboard.formats.request_parameters import Parameters
from ariane.console.services import ConsoleServices
from ariane.console.web.dependencies import Services
from ariane.errors import UsageError

routes = DashboardRouter("/ops")
discovery_routes = DashboardRouter("/rocketmq")
proxy_routes = DashboardRouter("/proxy")
test_routes = DashboardRouter("/test")
acl_routes = DashboardRouter("/acl")

NO_PROXIES = "RocketMQ 4.9.4 has no proxies: clients connect to the brokers"
ACL_2 = "use the page Access of the console (/access/acl/users), /api/v1/access/acl/users, or `ariane acl user`"


@routes.get("/homePage.query")
async def home_page(services: Services) -> Json:
    """Return the name servers. The console connects without VIP channel."""
    namesrv, uses_tls = services.settings.namesrv, _uses_tls(services)
    return {"namesvrAddrList": [namesrv], "currentNamesrv": namesrv, "useVIPChannel": False, "useTLS": uses_tls}


@routes.post("/updateNameSvrAddr.do")
async def set_name_servers(services: Services, parameters: Parameters) -> bool:
    """Accept the name servers that are used already."""
    return _unchanged_name_servers(services, "nameSvrAddrList", parameters)


@routes.post("/addNameSvrAddr.do")
async def add_name_servers(services: Services, parameters: Parameters) -> bool:
    """Accept the name servers that are used already."""
    return _unchanged_name_servers(services, "newNamesrvAddr", parameters)


@routes.post("/updateIsVIPChannel.do")
async def set_vip_channel(parameters: Parameters) -> bool:
    """Accept that the VIP channel is not used."""
    if parameters.flag("useVIPChannel"):
        raise UsageError(
            "useVIPChannel", True, "the console sends few requests and uses the normal port; expected false"
        )
    return True


@routes.post("/updateUseTLS.do")
async def set_tls(services: Services, parameters: Parameters) -> bool:
    """Accept the use of TLS as it is already."""
    requested, uses_tls = parameters.flag("useTLS"), _uses_tls(services)
    if requested != uses_tls:
        how = "with" if requested else "without"
        raise UsageError("useTLS", requested, f"the console has to be started {how} --tls; expected {uses_tls}")
    return True


@routes.get("/rocketMqStatus.query")
async def status(services: Services) -> Json:
    """Return the servers that do not respond, and the ordinary topics that only one of several brokers has."""
    snapshot = await loaded_snapshot(services)
    brokers: dict[str, set[str]] = {}
    for server in snapshot.brokers:
        brokers.setdefault(server.cluster, set()).add(server.broker)
    return {
        "CLUSTER_HEALTH_CHECK": list(snapshot.unavailable),
        "TOPIC_ONLY_ONE_BROKER_CHECK": [
            row.topic
            for row in snapshot.topics
            if row.kind == "normal"
            and len(row.brokers) == 1
            and any(len(brokers.get(name, ())) > 1 for name in row.clusters)
        ],
    }


@discovery_routes.get("/nsaddr", "/nsaddr.query")
async def name_servers(services: Services) -> PlainTextResponse:
    """Return the name servers as plain text, for clients that look them up by HTTP."""
    return PlainTextResponse(services.settings.namesrv)


@proxy_routes.get("/homePage.query")
async def proxies() -> Json:
    """Return no proxies."""
    return {"proxyAddrList": [], "currentProxyAddr": None}


@proxy_routes.post("/addProxyAddr.do", "/updateProxyAddr.do")
async def set_proxy() -> None:
    """Reject proxies."""
    raise UsageError("proxyAddr", None, NO_PROXIES)


@test_routes.get("/runTask.do")
async def run_test() -> None:
    """Reject Apache's endless demo traffic, which a GET starts and only the end of the process stops."""
    raise UsageError("test", None, "the console sends no demo traffic: use `ariane up --demo` or `ariane demo`")


@acl_routes.get("/users.query", "/acls.query")
@acl_routes.post("/createUser.do", "/updateUser.do", "/createAcl.do", "/updateAcl.do")
@acl_routes.delete("/deleteUser.do", "/deleteAcl.do")
async def acl() -> None:
    """Reject lists and changes of ACL 2.0."""
    raise UsageError("acl", None, ACL_2)


def _uses_tls(services: ConsoleServices) -> bool:
    return services.settings.client is not None and services.settings.client.use_tls


def _unchanged_name_servers(services: ConsoleServices, name: str, parameters: Parameters) -> bool:
    wanted, current = parameters.text(name), services.settings.namesrv
    if _addresses(wanted) != _addresses(current):
        hint = f"this console shows {current}; start another one: `ariane console -n {wanted}`"
        raise UsageError(name, wanted, hint)
    return True


def _addresses(text: str) -> set[str]:
    return {part.strip() for part in text.split(";") if part.strip()}
