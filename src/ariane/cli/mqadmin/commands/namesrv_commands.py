"""Commands on name servers. Reference: admin-and-dashboard 1.5 and 1.7."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ariane.cli.mqadmin.command import CommandList, Option, Options, Output, Run, lines
from ariane.cluster.admin import Admin

NAMESPACE = Option("s", "namespace", "Namespace of the key.", metavar="NAME", is_required=True)
KEY = Option("k", "key", "Key.", metavar="KEY", is_required=True)
VALUE = Option("v", "value", "Value.", metavar="VALUE", is_required=True)
BROKER_NAME = Option("b", "brokerName", "Broker name.", metavar="NAME", is_required=True)


COMMANDS = CommandList()


@COMMANDS.add("updateKvConfig", NAMESPACE, KEY, VALUE, is_change=True)
async def update_kv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    changes = await admin.put_kv(options.namespace, options.key, options.value)
    data = {"nameServers": [change.addr for change in changes]}
    yield Output("create or update kv config to namespace success.\n", data)


@COMMANDS.add("deleteKvConfig", NAMESPACE, KEY, is_change=True)
async def delete_kv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    changes = await admin.delete_kv(options.namespace, options.key)
    yield Output("delete kv config from namespace success.\n", {"nameServers": [change.addr for change in changes]})


def _write_permission(verb: str, is_writable: bool) -> Run:
    async def run(admin: Admin, options: Options) -> AsyncIterator[Output]:
        broker = options.brokerName
        results = await admin.set_broker_writable(broker, is_writable)
        title = f"{verb} write perm of broker[{broker}] in name server"
        yield Output(lines(f"{title}[{name_server}] OK, {topics}" for name_server, topics in results), results)

    return run


COMMANDS.add("wipeWritePerm", BROKER_NAME, is_change=True)(_write_permission("wipe", False))
COMMANDS.add("addWritePerm", BROKER_NAME, is_change=True)(_write_permission("add", True))


@COMMANDS.add("getNamesrvConfig")
async def get_namesrv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    answers = await admin.fetch_name_server_config()
    texts = []
    for server, settings in answers.values:
        texts += [
            f"============{server.addr}============",
            *(f"{key:<50}=  {value}" for key, value in settings.items()),
        ]
    data = [{"addr": server.addr, "settings": settings} for server, settings in answers.values]
    yield Output(lines(texts), data, answers.unavailable)


@COMMANDS.add("updateNamesrvConfig", KEY, VALUE, is_change=True)
async def update_namesrv_config(admin: Admin, options: Options) -> AsyncIterator[Output]:
    changes = await admin.update_name_server_config({options.key: options.value})
    servers = ", ".join(admin.name_servers)
    yield Output(
        f"update name server config success![{servers}]\n{options.key} : {options.value}\n",
        {"nameServers": [change.addr for change in changes], "settings": {options.key: options.value}},
    )
