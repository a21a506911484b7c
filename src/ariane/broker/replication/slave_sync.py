"""The part of a slave other than replication: copies of its master's tables, and refusals of a master's requests.

[SlaveSynchronize]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.persistent_state import PersistentState
from ariane.broker.lifecycle.ports import VIP_PORT_OFFSET
from ariane.broker.lifecycle.registration import Registration
from ariane.broker.lifecycle.topic_deletion import TopicRemover
from ariane.broker.replication import topic_pages
from ariane.broker.replication.following import Following, MasterLink, follow_master
from ariane.broker.replication.membership import Membership
from ariane.broker.state.loading import loaded_values
from ariane.errors import ArianeError, ConnectionLost, ReplyError
from ariane.model import host
from ariane.net.connection import Handler, Peer, Reply
from ariane.net.peer_log import REPEAT_S, PeerLog
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.tasks import BackgroundTasks
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records.member_stream import STREAM_KEY, TLS_KEY
from ariane.protocol.requests.admin import ConsumerOffsetTable, SubscriptionGroupTable
from ariane.protocol.requests.routing import KvTableBody
from ariane.protocol.signing import Credentials

log = logging.getLogger("ariane.broker.replication.slave_sync")

T = TypeVar("T", bound=msgspec.Struct)

COPY_INTERVAL_S = 10.0
FIRST_COPY_S = 3.0
MASTER_TIMEOUT_MS = 3_000  # less than the 5 s that Java's tools wait for a response

# Requests that change what a slave copies from its master, with the response of a slave.
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
    # The table of a slave is that of its master, which alone grants locks: clients request them from id 0 only.
    **dict.fromkeys(
        (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
        (ResponseCode.SYSTEM_ERROR, "this broker is a slave: lock queues at its master"),
    ),
    # Tools send it to all brokers of a cluster. A slave may have messages of a topic that it has not copied yet, and follows the
    # deletions of its master anyway, so it succeeds without doing anything.
    RequestCode.CLEAN_UNUSED_TOPIC: (ResponseCode.SUCCESS, None),
}  # fmt: skip


def reject_handlers() -> dict[int, Handler]:
    """Return the handlers that replace those of a master."""

    def refuse(answer: tuple[ResponseCode, str | None]) -> Handler:
        def handler(command: Command, peer: Peer) -> Reply:
            return Reply(answer[0], {}, answer[1])

        return handler

    return {code: refuse(answer) for code, answer in REJECTED.items()}


def delete_topic_handler(registration: Registration, copier: TableCopier, forwards: ConnectionPool) -> Handler:
    """Return a handler of DELETE_TOPIC_IN_BROKER that forwards the request to the master, and then copies its tables.

    `forwards` signs no requests.

    `mqadmin deleteTopic -c` sends the request to every broker of a cluster, slaves included, in any order. The slave of 4.9.4
    refuses it, which ends the command before the name servers forget the topic.
    """

    async def delete(command: Command, peer: Peer) -> Reply:
        addr = registration.master.master_addr
        if addr is None:
            remark = "this broker is a slave, and no name server knows its master: start the master, or delete the topic there"
            return Reply(ResponseCode.SYSTEM_ERROR, {}, remark)
        try:
            # Unchanged: the account that signed the request needs the permission of the master, too.
            connection = await forwards.connect(addr)
            response = await connection.request(
                command.code, command.field_map(), command.body, timeout_ms=MASTER_TIMEOUT_MS
            )
        except ArianeError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, {}, f"the master of this slave did not delete the topic: {error}")
        if response.code != ResponseCode.SUCCESS:
            return Reply(
                response.code, {}, f"the master {addr} of this slave did not delete the topic: {response.remark}"
            )
        await copier.copy(addr)
        return Reply()

    return delete


class MasterFeatures(NamedTuple):
    """What the replication port of a master supports, as it describes itself; a Java master, nothing of it."""

    has_members: bool = False
    accepts_tls: bool = False


async def check_master(peers: ConnectionPool, master: str | None, *, requires_ariane: bool) -> MasterFeatures:
    """Return what the master supports; raise ConnectionLost if it must be of this project and is not.

    Java's replication port reads the first 8 bytes of a TLS handshake, or of a proof, as an acknowledged offset, and a
    SYNC_MASTER then confirms sends that no slave has.
    """
    if master is None:
        if not requires_ariane:
            return MasterFeatures()
        raise ConnectionLost(
            "the master", "not opened: haTls and haAclEnable need a name server that knows the master's address"
        )
    try:
        response = await peers.request_ok(master, RequestCode.GET_BROKER_RUNTIME_INFO)
    except ReplyError:
        if requires_ariane:
            raise
        log.warning("The master %s does not describe itself to this slave, which is anonymous to it", master)
        return MasterFeatures()
    table = fastjson.decode(response.body, KvTableBody).table
    if requires_ariane and "kernels" not in table:  # no Java broker has this key
        raise ConnectionLost(
            master,
            "not opened: its replication is never encrypted, because it is Java's; set haTls=auto and haAclEnable=false",
        )
    return MasterFeatures(has_members=STREAM_KEY in table, accepts_tls=table.get(TLS_KEY) == "true")


class FollowingMember(Protocol):
    """Whether changes of the master's state are followed. [LocalMember]"""

    def follows_changes(self) -> bool: ...


class TableCopier:
    """Copies the tables of the master into the state of a slave.

    While the master sends changes of its state (`change_stream`), only the delay offsets are copied, which a Java broker needs.
    """

    def __init__(
        self,
        *,
        peers: ConnectionPool,
        state: PersistentState,
        remover: TopicRemover,
        member: FollowingMember,
    ) -> None:
        self.peers = peers
        self._member = member  # its state is checked after each request: a late copy must not undo a change
        self._state = state
        self._remover = remover
        self._log = PeerLog(log, lines=1, window_s=REPEAT_S)  # an invalid entry is found in every round

    async def copy(self, master: str) -> None:
        """Copy all tables once. A table that fails is logged and retried in the next round; the others are not affected."""
        tables = (
            ("topics", self._copy_topics),
            ("consumer offsets", self._copy_offsets),
            ("delay offsets", self._copy_delay_offsets),
            ("consumer groups", self._copy_groups),
        )
        for name, copy_table in tables:
            if self._member.follows_changes() and copy_table != self._copy_delay_offsets:
                continue
            try:
                await copy_table(master)
            except ArianeError as error:
                log.error("Cannot copy the %s of the master %s: %s", name, master, error)

    async def _copy_topics(self, master: str) -> None:
        ip, port = host.parse(master)
        vip_host = f"[{ip}]" if ":" in ip else ip
        vip_addr = f"{vip_host}:{port - VIP_PORT_OFFSET}"
        table = await topic_pages.fetch(
            self._state.topics, lambda page: self.peers.request_ok(vip_addr, RequestCode.GET_ALL_TOPIC_CONFIG, page)
        )
        table = await self._valid(table, "topics", master)
        if not self._member.follows_changes():
            self._remover.apply_master_deletions(table.deleted_topics or {})
            self._state.topics.replace(table)

    async def _copy_offsets(self, master: str) -> None:
        response = await self.peers.request_ok(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        # Java's dialect of JSON, about 20 bytes for each queue of each group: decode it outside the loop.
        table = await asyncio.to_thread(fastjson.decode, response.body, ConsumerOffsetTable)
        table = await self._valid(table, "consumer offsets", master)
        if not self._member.follows_changes():
            self._state.offsets.merge(table)

    async def _copy_delay_offsets(self, master: str) -> None:
        response = await self.peers.request(master, RequestCode.GET_ALL_DELAY_OFFSET)
        if response.code == ResponseCode.SUCCESS and response.body:
            await self._state.save_delay_document(response.body)
        elif response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a master without delay levels has none
            log.warning("Cannot copy the delay offsets of the master %s: %s", master, response.remark)

    async def _copy_groups(self, master: str) -> None:
        response = await self.peers.request_ok(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table = fastjson.decode(response.body, SubscriptionGroupTable)
        table = await self._valid(table, "consumer groups", master)
        if not self._member.follows_changes():
            self._state.groups.replace(table)

    async def _valid(self, table: T, name: str, master: str) -> T:
        """Return a table without the entries that no client may send: Java's masters store any."""
        dropped = await asyncio.to_thread(loaded_values.drop_invalid, table)
        if dropped:
            now, shown = asyncio.get_running_loop().time(), loaded_values.examples(dropped)
            text = "Not copying %d invalid %s of the master %s: %s"
            self._log.warning(f"the {name} of {master}", now, text, len(dropped), name, master, shown)
        return table


def start(
    config: BrokerConfig,
    registration: Registration,
    tasks: BackgroundTasks,
    copier: TableCopier,
    following: Following,
    on_stored: Callable[[], None],
    credentials: Credentials | None,
    membership: Membership | None = None,
) -> None:
    """Start to follow the master's log and to copy its tables periodically. The name servers provide its address.

    With failover the record names the master, and the supervisor starts to follow it.
    """

    def ha_master() -> str:
        return config.ha_master_address or registration.master.ha_server_addr or ""

    async def refresh_master() -> None:
        if not config.ha_master_address:
            await registration.register_now()

    async def copy() -> None:
        if master := membership.holder_addr() if membership else registration.master.master_addr:
            await copier.copy(master)

    context, is_required = config.replication_context(), config.requires_replication_tls
    proof = credentials if config.ha_acl_enable else None
    plain_masters: set[str | None] = set()  # each is reported once

    async def link() -> MasterLink:
        master = registration.master.master_addr
        requires_ariane = is_required or proof is not None
        has_members, accepts_tls = await check_master(copier.peers, master, requires_ariane=requires_ariane)
        if config.confirmed_reads and not has_members:
            reason = "not opened: confirmedReads needs a master of Ariane, whose address the name servers know"
            raise ConnectionLost(master or "the master", reason)
        is_encrypted = is_required or accepts_tls
        if context is not None and not is_encrypted and master not in plain_masters:
            plain_masters.add(master)
            text = "Replication from the master %s is not encrypted: it does not say that it accepts TLS, as no Java master does"
            log.warning(text, master, extra={"notice": True})
        return MasterLink(context if is_encrypted else None, proof, has_members)

    if context is None and config.encrypts_requests:
        log.warning("Replication from the master is not encrypted: haTls is false", extra={"notice": True})
    tasks.repeat(COPY_INTERVAL_S, copy, "copy the master's tables", first_s=FIRST_COPY_S)
    if membership is not None:
        return
    work = follow_master(config, following, ha_master, refresh_master, on_stored, link)
    tasks.start(work, "follow the master")
