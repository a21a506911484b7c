"""Commands on name servers. Reference: admin-and-dashboard 1.5 and 1.7."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ariane.cli.mqadmin.command import AdminCommand, Option, Options, Output, lines
from ariane.cluster.admin import Admin
from ariane.cluster.servers.name_server_admin import WritePermission

NAMESPACE = Option("s", "namespace", "Namespace of the key.", metavar="NAME", is_required=True)
KEY = Option("k", "key", "Key.", metavar="KEY", is_required=True)
VALUE = Option("v", "value", "Value.", metavar="VALUE", is_required=True)
BROKER_NAME = Option("b", "brokerName", "Broker name.", metavar="NAME", is_required=True)


async def update_kv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Set a value of the KV table on all name servers."""
    changes = await admin.put_kv(options.namespace, options.key, options.value)
    data = {"nameServers": [change.addr for change in changes]}
    yield Output("create or update kv config to namespace success.\n", data)


async def delete_kv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Delete a value from the KV table of all name servers."""
    changes = await admin.delete_kv(options.namespace, options.key)
    yield Output("delete kv config from namespace success.\n", {"nameServers": [change.addr for change in changes]})


async def wipe_write_perm(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Remove the write permission of a broker on all name servers."""
    yield _write_permission("wipe", options.brokerName, await admin.set_broker_writable(options.brokerName, False))


async def add_write_perm(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Restore the write permission of a broker on all name servers."""
    yield _write_permission("add", options.brokerName, await admin.set_broker_writable(options.brokerName, True))


def _write_permission(verb: str, broker: str, results: list[WritePermission]) -> Output:
    return Output(
        lines(
            f"{verb} write perm of broker[{broker}] in name server[{name_server}] OK, {topics}"
            for name_server, topics in results
        ),
        results,
    )


async def get_namesrv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Print the settings of each name server."""
    answers = await admin.fetch_name_server_config()
    texts = []
    for server, settings in answers.values:
        texts += [
            f"============{server.addr}============",
            *(f"{key:<50}=  {value}" for key, value in settings.items()),
        ]
    data = [{"addr": server.addr, "settings": settings} for server, settings in answers.values]
    yield Output(lines(texts), data, answers.unavailable)


async def update_namesrv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    """Change a setting of all name servers."""
    changes = await admin.update_name_server_config({options.key: options.value})
    servers = ", ".join(admin.name_servers)
    yield Output(
        f"update name server config success![{servers}]\n{options.key} : {options.value}\n",
        {"nameServers": [change.addr for change in changes], "settings": {options.key: options.value}},
    )


COMMANDS = (
    AdminCommand("updateKvConfig", update_kv_config, (NAMESPACE, KEY, VALUE), is_change=True),
    AdminCommand("deleteKvConfig", delete_kv_config, (NAMESPACE, KEY), is_change=True),
    AdminCommand("wipeWritePerm", wipe_write_perm, (BROKER_NAME,), is_change=True),
    AdminCommand("addWritePerm", add_write_perm, (BROKER_NAME,), is_change=True),
    AdminCommand("getNamesrvConfig", get_namesrv_config),
    AdminCommand("updateNamesrvConfig", update_namesrv_config, (KEY, VALUE), is_change=True),
)
