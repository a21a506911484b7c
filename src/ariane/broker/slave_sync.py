"""What a slave is beside its log: a copy of its master's tables, and no to what only a master may do. [SlaveSynchronize]"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from ariane.broker import topic_pages
from ariane.broker.config import BrokerConfig
from ariane.broker.ports import VIP_PORT_OFFSET
from ariane.broker.registration import Registration
from ariane.broker.replication import follow_master
from ariane.broker.state.consumer_offsets import ConsumerOffsets
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ArianeError
from ariane.model import host
from ariane.model.topic import TopicDeletion
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.connection_pool import ConnectionPool
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.store.log_replica import Replica

log = logging.getLogger("ariane.broker.slave_sync")

COPY_EVERY_S = 10.0
COPY_FIRST_S = 3.0
MASTER_MS = 3_000  # within the 5 s that Java's tools wait for an answer

# Requests that change what comes from the master, with the answer of a slave.
REJECTED: dict[RequestCode, tuple[ResponseCode, str | None]] = {
    **dict.fromkeys(
        (
            RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
        ),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave: send to its master"),
    ),
    RequestCode.END_TRANSACTION: (
        ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave: transactions end at its master",
    ),
    **dict.fromkeys(
        (
            RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
        ),
        (ResponseCode.SYSTEM_ERROR, "this broker is a slave: change topics and groups at its master"),
    ),
    # A tool sends it to all brokers of a cluster. The slave may have messages of a topic that it has not copied yet; what its
    # master deletes it takes over.
    RequestCode.CLEAN_UNUSED_TOPIC: (ResponseCode.SUCCESS, None),
}  # fmt: skip


def reject_handlers() -> dict[int, Handler]:
    """Handlers that take the place of a master's."""

    def refuse(answer: tuple[ResponseCode, str | None]) -> Handler:
        def handler(command: Command, peer: Peer) -> Reply:
            return Reply(answer[0], {}, answer[1])

        return handler

    return {code: refuse(answer) for code, answer in REJECTED.items()}


def delete_topic_handler(peers: ConnectionPool, master: Callable[[], str | None], copied: Copied) -> Handler:
    """A handler of DELETE_TOPIC_IN_BROKER that has the master delete the topic, and takes that over at once.

    `mqadmin deleteTopic -c` sends the request to every broker of a cluster, slaves included, in any order. The slave of 4.9.4
    refuses it, which ends the command before the name servers forget the topic.
    """

    async def delete(command: Command, peer: Peer) -> Reply:
        addr = master()
        if addr is None:
            remark = "this broker is a slave, and no name server has its master: start that, or delete the topic there"
            return Reply(ResponseCode.SYSTEM_ERROR, {}, remark)
        try:
            # As it came: the account that signed the request needs the permission of the master, too.
            connection = await peers.connect(addr)
            answer = await connection.request(command.code, command.field_map(), command.body, timeout_ms=MASTER_MS)
        except ArianeError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, {}, f"the master of this slave does not delete the topic: {error}")
        if answer.code != ResponseCode.SUCCESS:
            return Reply(answer.code, {}, f"the master {addr} of this slave does not delete the topic: {answer.remark}")
        await copy_tables(peers, addr, copied)
        return Reply()

    return delete


class Copied(NamedTuple):
    """The tables that follow the master's. `save_delays` writes delayOffset.json, `take_deletions` deletes topics."""

    topics: TopicRegistry
    groups: GroupRegistry
    offsets: ConsumerOffsets
    save_delays: Callable[[bytes], Awaitable[None]]
    take_deletions: Callable[[Mapping[str, TopicDeletion]], None]


def start(
    config: BrokerConfig,
    registration: Registration,
    peers: ConnectionPool,
    tasks: BackgroundTasks,
    tables: Copied,
    replica: Replica,
    stored: Callable[[], None],
) -> None:
    """Follow the master's log and copy its tables from now on. Where it is, the name servers say."""

    def ha_master() -> str:
        return config.ha_master_address or registration.master.ha_server_addr or ""

    async def ask_again() -> None:
        if not config.ha_master_address:
            await registration.register_now()

    async def copy() -> None:
        if master := registration.master.master_addr:
            await copy_tables(peers, master, tables)

    tasks.start(follow_master(config, replica, ha_master, ask_again, stored), "follow the master")
    tasks.repeat(COPY_EVERY_S, copy, "copy the master's tables", first_s=COPY_FIRST_S)


async def copy_tables(peers: ConnectionPool, master: str, tables: Copied) -> None:
    """Take over the master's tables once. One that cannot be had is tried again with the next round; the others go on."""

    async def topics() -> None:
        ip, port = host.parse(master)
        fast = f"[{ip}]" if ":" in ip else ip
        fast_addr = f"{fast}:{port - VIP_PORT_OFFSET}"
        table = await topic_pages.fetch(
            tables.topics, lambda page: peers.request_ok(fast_addr, RequestCode.GET_ALL_TOPIC_CONFIG, page)
        )
        tables.take_deletions(table.deleted_topics or {})
        tables.topics.replace(table)

    async def offsets() -> None:
        answer = await peers.request_ok(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        # Java's dialect, some 20 bytes for each queue of each group: it is read outside the loop.
        tables.offsets.merge(await asyncio.to_thread(fastjson.decode, answer.body, ConsumerOffsetTable))

    async def delays() -> None:
        answer = await peers.request(master, RequestCode.GET_ALL_DELAY_OFFSET)
        if answer.code == ResponseCode.SUCCESS and answer.body:
            await tables.save_delays(answer.body)
        elif answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a master without delay levels has none
            log.warning("the master %s does not tell its delay offsets: %s", master, answer.remark)

    async def groups() -> None:
        answer = await peers.request_ok(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        tables.groups.replace(fastjson.decode(answer.body, SubscriptionGroupTable))

    for name, copy in (("topics", topics), ("offsets", offsets), ("delay offsets", delays), ("groups", groups)):
        try:
            await copy()
        except ArianeError as error:
            log.error("cannot copy the %s of the master %s: %s", name, master, error)
