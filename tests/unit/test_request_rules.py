"""Every request code of the broker and of the name server rejects names that are too long, empty or unprintable."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest

from ariane.errors import ProtocolError
from ariane.model.message import MessageQueue
from ariane.model.topic import DataVersion, SubscriptionGroupConfig, TopicConfig
from ariane.nameserver import registration
from ariane.net.connection import Handler
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.server import RemotingServer
from ariane.protocol.codes import VERSION, RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header, encode_header, rules
from ariane.protocol.requests.acl import DeleteAccount, UpdateAccount, UpdateWhiteAddresses
from ariane.protocol.requests.admin import CreateTopic, DeleteGroup, GroupName, ProducerGroupRef, TopicRef
from ariane.protocol.requests.brokers import CloneOffsets, FilterServer, QueryCorrection, QueryQueue
from ariane.protocol.requests.callbacks import ConsumeDirectly, ConsumerStatus, ResetOffset, RunningInfoRequest
from ariane.protocol.requests.clients import (
    CheckClient,
    ConsumerData,
    GroupRef,
    HeartbeatData,
    LockBatch,
    ProducerData,
    SubscriptionData,
    UnregisterClient,
    WireQueue,
)
from ariane.protocol.requests.messaging import (
    LONG_NAMES,
    ConsumerSendMsgBack,
    EndTransactionHeader,
    PullMessage,
    QueryConsumerOffset,
    QueryMessage,
    QueueRef,
    RecallMessage,
    ResumeCheckHalfMessage,
    SearchOffset,
    SendMessage,
    UpdateConsumerOffset,
    ViewMessage,
)
from ariane.protocol.requests.pop import (
    AckMessage,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleTime,
    ListInFlight,
    PollingInfo,
    PopMessage,
    PopNotification,
    QueryAssignment,
    RequestMode,
)
from ariane.protocol.requests.routing import (
    BrokerName,
    BrokerRef,
    ClusterRef,
    DeleteTopicRoute,
    KvKey,
    KvNamespace,
    PutKv,
    RegisterBroker,
    RegisterBrokerBody,
    RouteRequest,
    TopicTable,
)
from ariane.protocol.requests.stats import GetBrokerConsumeStats, GetConsumeStats, QueryConsumeTimeSpan, ViewBrokerStats
from ariane.testing.virtual.virtual_cluster import VirtualCluster, virtual_cluster

OVERSIZED = "x" * 40_000
CONTROL = "a\x02b\x00"
BLANK = ""
BROKER_ADDR = "10.0.0.2:10911"  # of a virtual cluster

SEND = SendMessage("P", "T", "TBW102", 4, 0, 0, 1234, 0, "")
PULL = PullMessage("G", "T", 0, 0, 1, 4, 0, 0, "*", 0, "TAG")
QUEUE = WireQueue.of(MessageQueue("T", "broker-a", 0))
SUBSCRIPTION = SubscriptionData(
    topic="T", sub_string="a", expression_type="TAG", tags_set=frozenset("a"), code_set=frozenset({97})
)
BROKER = BrokerRef("other", "10.0.0.9:10911", "DefaultCluster", 0)


class Example(NamedTuple):
    """A valid request: its header and its body, each with a value for every name."""

    header: msgspec.Struct | None = None
    body: msgspec.Struct | None = None


NOTHING = Example()  # codes that read neither header nor body, or a body of settings (`java_properties`)

BRIEF_NAMES = {brief: name for name, brief in LONG_NAMES.items()}  # of the first forms of sends

HANDLE = "0 1 1 0 0 broker-a 0 0"  # of a message of queue 0
BROKER_REQUESTS: dict[int, Example] = {
    RequestCode.SEND_MESSAGE: Example(SEND),
    RequestCode.SEND_MESSAGE_V2: Example(SEND),
    RequestCode.SEND_BATCH_MESSAGE: Example(SEND),
    RequestCode.SEND_REPLY_MESSAGE: Example(SEND),
    RequestCode.SEND_REPLY_MESSAGE_V2: Example(SEND),
    RequestCode.PULL_MESSAGE: Example(PULL),
    RequestCode.LITE_PULL_MESSAGE: Example(PULL),
    RequestCode.POP_MESSAGE: Example(PopMessage("G", "T", 0, 1, 1, 0, exp_type="TAG", exp="*", attempt_id="a")),
    RequestCode.ACK_MESSAGE: Example(AckMessage("G", "T", 0, HANDLE, 0)),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Example(ChangeInvisibleTime("G", "T", 0, HANDLE, 0, 1)),
    RequestCode.BATCH_ACK_MESSAGE: Example(None, BatchAckBody((BatchAck("G", "T", 0, 0, 1, ""),))),
    RequestCode.NOTIFICATION: Example(PopNotification("G", "T", 0, 0, attempt_id="a")),
    RequestCode.POLLING_INFO: Example(PollingInfo("G", "T", 0)),
    RequestCode.LIST_IN_FLIGHT: Example(ListInFlight("G", 1, "T")),
    RequestCode.QUERY_ASSIGNMENT: Example(None, QueryAssignment("T", "G", "c", "AVG", "CLUSTERING")),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Example(None, RequestMode("T", "G", "POP")),
    RequestCode.QUERY_MESSAGE: Example(QueryMessage("T", "k", 1, 0, 9, "false", "")),
    RequestCode.VIEW_MESSAGE_BY_ID: Example(ViewMessage(0)),
    RequestCode.QUERY_CONSUMER_OFFSET: Example(QueryConsumerOffset("G", "T", 0)),
    RequestCode.UPDATE_CONSUMER_OFFSET: Example(UpdateConsumerOffset("G", "T", 0, 0)),
    RequestCode.UPDATE_AND_CREATE_TOPIC: Example(CreateTopic("N", "TBW102", 1, 1, 6, attributes="+message.type=FIFO")),
    RequestCode.GET_ALL_TOPIC_CONFIG: NOTHING,
    RequestCode.UPDATE_BROKER_CONFIG: NOTHING,
    RequestCode.GET_BROKER_CONFIG: NOTHING,
    RequestCode.GET_BROKER_RUNTIME_INFO: NOTHING,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Example(SearchOffset("T", 0, 0)),
    RequestCode.GET_MAX_OFFSET: Example(QueueRef("T", 0)),
    RequestCode.GET_MIN_OFFSET: Example(QueueRef("T", 0)),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Example(QueueRef("T", 0)),
    RequestCode.HEART_BEAT: Example(
        None,
        HeartbeatData(
            "c", (ConsumerData(group_name="G", subscription_data_set=(SUBSCRIPTION,)),), (ProducerData("P"),)
        ),
    ),
    RequestCode.UNREGISTER_CLIENT: Example(UnregisterClient("c", "P", "G")),
    RequestCode.CONSUMER_SEND_MSG_BACK: Example(ConsumerSendMsgBack(0, "G", 0, "id", "T")),
    RequestCode.END_TRANSACTION: Example(EndTransactionHeader("P", 0, 0, 8, False, "id", "id")),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Example(GroupRef("G")),
    RequestCode.LOCK_BATCH_MQ: Example(None, LockBatch("c", "G", (QUEUE,))),
    RequestCode.UNLOCK_BATCH_MQ: Example(None, LockBatch("c", "G", (QUEUE,))),
    RequestCode.GET_ALL_CONSUMER_OFFSET: NOTHING,
    RequestCode.GET_ALL_DELAY_OFFSET: NOTHING,
    RequestCode.CHECK_CLIENT_CONFIG: Example(None, CheckClient("c", "G", SUBSCRIPTION)),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Example(None, SubscriptionGroupConfig(group_name="G")),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: NOTHING,
    RequestCode.REQUEST_BATCH: NOTHING,  # its requests are those of other codes: test_request_batch
    **dict.fromkeys(range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1), NOTHING),  # test_acl_users
    RequestCode.MEMBER_REQUEST: NOTHING,  # refused without failover: test_membership
    RequestCode.GET_AUDIT_LOG: NOTHING,  # texts that are compared only: test_server_audit_log
    RequestCode.GET_TOPIC_STATS_INFO: Example(TopicRef("T")),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Example(GroupRef("G")),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Example(ProducerGroupRef("P")),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Example(DeleteGroup("N")),
    RequestCode.GET_CONSUME_STATS: Example(GetConsumeStats("G", "T")),
    RequestCode.DELETE_TOPIC_IN_BROKER: Example(TopicRef("N")),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Example(ResetOffset("T", "G", 0)),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Example(ConsumerStatus("T", "G", "c")),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Example(TopicRef("T")),
    RequestCode.REGISTER_FILTER_SERVER: Example(FilterServer("10.0.0.9:1")),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Example(QueryConsumeTimeSpan("T", "G")),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: NOTHING,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: NOTHING,
    RequestCode.GET_CONSUMER_RUNNING_INFO: Example(RunningInfoRequest("G", "c")),
    RequestCode.QUERY_CORRECTION_OFFSET: Example(QueryCorrection("G", "T", "G2")),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Example(ConsumeDirectly("G", "c", "id", "broker-a")),
    RequestCode.CLONE_GROUP_OFFSET: Example(CloneOffsets("G", "G2", "T")),
    RequestCode.VIEW_BROKER_STATS_DATA: Example(ViewBrokerStats("TOPIC_PUT_NUMS", "T")),
    RequestCode.CLEAN_UNUSED_TOPIC: NOTHING,
    RequestCode.GET_BROKER_CONSUME_STATS: Example(GetBrokerConsumeStats(False)),
    RequestCode.QUERY_CONSUME_QUEUE: Example(QueryQueue("T", 0, 0, 1, "G")),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Example(ResumeCheckHalfMessage("id")),
    RequestCode.GET_ALL_PRODUCER_INFO: NOTHING,
    RequestCode.DELETE_EXPIRED_COMMITLOG: NOTHING,
    RequestCode.GET_TOPIC_CONFIG: Example(TopicRef("T")),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Example(GroupName("G")),
    RequestCode.RECALL_MESSAGE: Example(RecallMessage("handle", "T", "P")),
    # Access control is off: these are refused unread. Their headers are checked below.
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: NOTHING,
    RequestCode.DELETE_ACL_CONFIG: NOTHING,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: NOTHING,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: NOTHING,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: NOTHING,
}

NAME_SERVER_REQUESTS: dict[int, Example] = {
    RequestCode.PUT_KV_CONFIG: Example(PutKv("n", "k", "v")),
    RequestCode.GET_KV_CONFIG: Example(KvKey("n", "k")),
    RequestCode.DELETE_KV_CONFIG: Example(KvKey("n", "k")),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Example(KvNamespace("n")),
    RequestCode.REGISTER_BROKER: Example(
        RegisterBroker("other", "10.0.0.9:10911", "DefaultCluster", "10.0.0.9:10912", 0),
        RegisterBrokerBody(("10.0.0.9:1",), TopicTable(DataVersion(), {"T": TopicConfig(topic_name="T")})),
    ),
    RequestCode.UNREGISTER_BROKER: Example(BROKER),
    RequestCode.QUERY_DATA_VERSION: Example(BROKER, DataVersion()),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Example(RouteRequest("T")),
    RequestCode.GET_BROKER_CLUSTER_INFO: NOTHING,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Example(BrokerName("other")),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Example(BrokerName("other")),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NOTHING,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Example(DeleteTopicRoute("N", "DefaultCluster")),
    RequestCode.GET_TOPICS_BY_CLUSTER: Example(ClusterRef("DefaultCluster")),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: NOTHING,
    RequestCode.GET_UNIT_TOPIC_LIST: NOTHING,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: NOTHING,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NOTHING,
    RequestCode.UPDATE_NAMESRV_CONFIG: NOTHING,
    RequestCode.GET_NAMESRV_CONFIG: NOTHING,
    RequestCode.GET_AUDIT_LOG: NOTHING,
}

# What is valid although it looks like a bad name, and why. Everything else must be refused.
EXEMPT: dict[tuple[str, str], str] = {
    ("SendMessage.properties", BLANK): "a message has no properties",
    ("SendMessage.properties", CONTROL): "properties are separated by control characters",
    ("SendMessage.properties", OVERSIZED): "the store refuses the record, if it holds so many properties",
    ("SendMessage.default_topic", BLANK): "only looked up: there is no such template",
    ("SendMessage.default_topic", CONTROL): "only looked up: there is no such template",
    ("SendMessage.producer_group", BLANK): "only recorded, in half messages: checked there",
    ("SendMessage.producer_group", CONTROL): "only recorded, in half messages: checked there",
    ("PullMessage.subscription", CONTROL): "a tag may hold any character",
    ("PullMessage.subscription", BLANK): "every message",
    ("PullMessage.expression_type", BLANK): "TAG",
    ("PopMessage.exp", CONTROL): "a tag may hold any character",
    ("BatchAck.bits", BLANK): "no message",
    ("QueryMessage.key", CONTROL): "a key may hold any character",
    ("CreateTopic.default_topic", BLANK): "not read",
    ("CreateTopic.attributes", BLANK): "no changes",
    ("PutKv.value", BLANK): "a value",
    ("PutKv.value", CONTROL): "a value",
    ("PutKv.value", OVERSIZED): "a value; a header holds at most 64 KiB",
    ("SubscriptionData.sub_string", BLANK): "every message",
    ("SubscriptionData.sub_string", CONTROL): "a tag may hold any character",
    ("SubscriptionData.tags_set", BLANK): "a tag may hold any character",
    ("SubscriptionData.tags_set", CONTROL): "a tag may hold any character",
    ("TopicConfig.topic_name", BLANK): "the key of the table counts",
    ("QueryCorrection.filter_groups", CONTROL): "only looked up",
}
OPTIONAL = "an omitted member"
for _member in (
    "QueryMessage.unique_key_query", "QueryMessage.query_position", "UnregisterClient.producer_group",
    "UnregisterClient.consumer_group", "ConsumerSendMsgBack.origin_msg_id", "ConsumerSendMsgBack.origin_topic",
    "EndTransactionHeader.msg_id", "EndTransactionHeader.transaction_id", "GetConsumeStats.topic", "ConsumerStatus.client_addr",
    "QueryCorrection.filter_groups", "CloneOffsets.topic", "QueryQueue.consumer_group", "RecallMessage.topic",
    "RecallMessage.producer_group", "CheckClient.client_id", "CheckClient.group", "SubscriptionData.expression_type",
    "ConsumerData.consume_from_where", "ConsumerData.consume_type", "ConsumerData.message_model",
    "RegisterBroker.ha_server_addr", "DeleteTopicRoute.cluster_name", "TopicConfig.topic_filter_type",
    "ConsumeDirectly.broker_name", "PopMessage.exp", "PopMessage.exp_type", "PopMessage.attempt_id", "BatchAck.retry",
    "PopNotification.attempt_id", "QueryAssignment.strategy_name", "QueryAssignment.message_model",
    "ListInFlight.topic",
):  # fmt: skip
    EXEMPT[_member, BLANK] = OPTIONAL

REFUSED = ("Invalid ", "Expected `str` of length")


def bad_headers(header: msgspec.Struct) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Member, bad value, and the extFields of `header` with that value in it."""
    kind = type(header)
    for field in msgspec.structs.fields(kind):
        value = getattr(header, field.name)
        if field.type is not str and "str" not in str(field.type):
            continue
        assert value is not None, f"give the example of {kind.__name__} a {field.name}"
        for bad in (OVERSIZED, BLANK, CONTROL):
            yield f"{kind.__name__}.{field.name}", bad, {**encode_header(header), field.encode_name: bad}


def bad_bodies(body: msgspec.Struct) -> Iterator[tuple[str, str, bytes]]:
    """The same for a JSON body, its nested Structs and the keys of its tables included."""
    for bad in (OVERSIZED, BLANK, CONTROL):
        for member, changed in _changed(body, bad):
            yield member, bad, msgspec.json.encode(changed)


def _changed(value: Any, bad: str, member: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(type(value)):
            name = f"{type(value).__name__}.{field.name}"
            for deeper, changed in _changed(getattr(value, field.name), bad, name):
                yield deeper, msgspec.structs.replace(value, **{field.name: changed})
    elif isinstance(value, str):
        yield member, bad
    elif isinstance(value, tuple | frozenset):
        for item in value:
            for deeper, changed in _changed(item, bad, member):
                yield deeper, type(value)([changed])
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{member} key", {bad: item}
            for deeper, changed in _changed(item, bad, member):
                yield deeper, {**copy.copy(value), key: changed}


def fault_of(code: int, member: str, bad: str, answer: Command) -> str | None:
    """What is wrong with the answer to a bad request, or None."""
    if (member, bad) in EXEMPT:
        return None
    if answer.code and answer.remark and any(word in answer.remark for word in REFUSED):
        return None
    if answer.code == OWN_ANSWERS.get(member, ResponseCode.SUCCESS) != ResponseCode.SUCCESS:
        return None
    return f"{RequestCode(code).name}: {member} = {bad[:10]!r} is answered {answer.code}: {answer.remark}"


# Members that a handler checks itself, with the code of 4.9.4's answer.
OWN_ANSWERS = {
    "SendMessage.topic": ResponseCode.SYSTEM_ERROR,
    "PullMessage.topic": ResponseCode.TOPIC_NOT_EXIST,
    "PullMessage.expression_type": ResponseCode.SYSTEM_ERROR,
    "CreateTopic.attributes": ResponseCode.SYSTEM_ERROR,
    "CreateTopic.topic_filter_type": ResponseCode.SYSTEM_ERROR,
    "ResumeCheckHalfMessage.msg_id": ResponseCode.SYSTEM_ERROR,
    "ConsumeDirectly.msg_id": ResponseCode.SYSTEM_ERROR,
    "ConsumeDirectly.client_id": ResponseCode.SYSTEM_ERROR,
    "RecallMessage.recall_handle": ResponseCode.SYSTEM_ERROR,
}


async def ask(peers: ConnectionPool, addr: str, code: int, header: dict[str, str] | None, body: bytes) -> Command:
    connection = await peers.connect(addr)
    return await connection.request(code, header, body, timeout_ms=30_000)


@pytest.mark.parametrize("server", ["broker", "name server"])
def test_every_code_rejects_invalid_names(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Mapping[int, Handler]] = []
    start = RemotingServer.__init__

    @functools.wraps(start)
    def record_handlers(self: RemotingServer, handlers: Mapping[int, Handler], *args: Any, **named: Any) -> None:
        served.append(handlers)  # the broker fills it later
        start(self, handlers, *args, **named)

    monkeypatch.setattr(RemotingServer, "__init__", record_handlers)

    async def scenario(world: VirtualCluster) -> None:
        await world.start()
        examples = BROKER_REQUESTS if server == "broker" else NAME_SERVER_REQUESTS
        addr = BROKER_ADDR if server == "broker" else world.namesrv
        await world.process("peer").start(visit(examples, addr))

    async def visit(examples: dict[int, Example], addr: str) -> None:
        known = RequestCode.HEART_BEAT if server == "broker" else RequestCode.REGISTER_BROKER
        table = max((table for table in served if known in table), key=len)
        assert {RequestCode(code).name for code in table} == {RequestCode(code).name for code in examples}
        faults = []
        async with ConnectionPool({}) as peers:
            created = encode_header(CreateTopic("T", "TBW102", 4, 4, 6))
            if server == "broker":
                assert (await ask(peers, addr, RequestCode.UPDATE_AND_CREATE_TOPIC, created, b"")).code == 0
            for code, example in examples.items():
                complete = msgspec.json.encode(example.body) if example.body else b""
                header = encode_header(example.header) if example.header else None
                for member, bad, texts in bad_headers(example.header) if example.header else ():
                    is_long = code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
                    fields = {BRIEF_NAMES[name]: text for name, text in texts.items()} if is_long else texts
                    faults.append(fault_of(code, member, bad, await ask(peers, addr, code, fields, complete)))
                for member, bad, body in bad_bodies(example.body) if example.body else ():
                    faults.append(fault_of(code, member, bad, await ask(peers, addr, code, header, body)))
        assert list(filter(None, faults)) == []

    with virtual_cluster() as world:
        world.run(scenario(world))


@pytest.mark.parametrize("header", [
    UpdateAccount("a", "s", "*", False, "DENY", "DENY", "T=PUB", "G=SUB"), DeleteAccount("a"), UpdateWhiteAddresses("*", "f"),
])  # fmt: skip
def test_account_headers_reject_invalid_names(header: msgspec.Struct) -> None:
    for member, bad, texts in bad_headers(header):
        if bad is OVERSIZED or member.endswith("access_key"):
            with pytest.raises(ProtocolError, match="Invalid"):
                decode_header(Command(code=50, fields=texts), type(header))


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (UpdateConsumerOffset("G", "Nowhere", 0, 0), ResponseCode.SUCCESS),  # as in 4.9.4
        (UpdateConsumerOffset("G", "Nowhere", 1_024, 0), ResponseCode.SYSTEM_ERROR),
        (UpdateConsumerOffset("G", "No/where", 0, 0), ResponseCode.SYSTEM_ERROR),
        (UpdateConsumerOffset("G", "x" * 128, 0, 0), ResponseCode.SYSTEM_ERROR),
        (UpdateConsumerOffset("G", "T", 4, 0), ResponseCode.SYSTEM_ERROR),
        (UpdateConsumerOffset("G", "T", -1, 0), ResponseCode.SYSTEM_ERROR),
        (UpdateConsumerOffset("G", "T", 0, -1), ResponseCode.SYSTEM_ERROR),
        (UpdateConsumerOffset("G" * 256, "T", 0, 0), ResponseCode.SYSTEM_ERROR),
        (UpdateConsumerOffset("G", "T", 3, 2**62), ResponseCode.SUCCESS),
    ],
)
def test_offsets_are_committed_only_for_plausible_queues(header: UpdateConsumerOffset, code: int) -> None:
    """60 commits with group names of 4 MiB used 760 MiB; names and numbers were not validated."""

    async def scenario(world: VirtualCluster) -> None:
        await world.start()

        async def commit() -> Command:
            async with ConnectionPool({}) as peers:
                created = encode_header(CreateTopic("T", "TBW102", 4, 4, 6))
                await ask(peers, BROKER_ADDR, RequestCode.UPDATE_AND_CREATE_TOPIC, created, b"")
                return await ask(peers, BROKER_ADDR, RequestCode.UPDATE_CONSUMER_OFFSET, encode_header(header), b"")

        assert (await world.process("peer").start(commit())).code == code

    with virtual_cluster() as world:
        world.run(scenario(world))


def test_every_number_in_a_request_is_bounded() -> None:
    huge = TopicTable(DataVersion(), {"T": TopicConfig(topic_name="T", read_queue_nums=10**30)})
    with pytest.raises(ProtocolError, match="Invalid readQueueNums"):
        rules.check(RegisterBrokerBody((), huge))
    with pytest.raises(ProtocolError, match="Invalid counter"):
        rules.check(DataVersion(counter=2**63))
    with pytest.raises(ProtocolError, match="Invalid queueId -1: expected 0 to 65536"):
        rules.check(LockBatch("c", "G", (WireQueue("broker-a", -1, "T"),)))
    heartbeat = HeartbeatData("c", (), (ProducerData("P"),) * 4_097)
    with pytest.raises(ProtocolError, match="4097 elements: expected at most 4096"):
        rules.check(heartbeat)


@pytest.mark.parametrize("name", ["ip-10-0-0-1.ec2.internal", "x" * 255])
def test_a_java_broker_can_register_under_its_host_name(name: str) -> None:
    header = RegisterBroker(name, "10.0.0.9:10911", "DefaultCluster", "10.0.0.9:10912", 0)
    retry = "%RETRY%" + "g" * 255  # which 4.9.4 creates for the group with the longest name
    table = {topic: TopicConfig(topic_name=topic) for topic in (name, retry)}
    body = msgspec.json.encode(RegisterBrokerBody((), TopicTable(DataVersion(), table)))
    assert decode_header(Command(code=103, fields=encode_header(header)), RegisterBroker) == header
    registered = registration.decode(header, body, VERSION)
    assert set(registered.topic_config_serialize_wrapper.topic_config_table) == {name, retry}


@pytest.mark.parametrize("directory", [".", "..", "../up", "a\\b"])
@pytest.mark.parametrize("member", ["broker_name", "broker_addr", "cluster_name", "ha_server_addr"])
def test_a_broker_cannot_register_under_a_path(member: str, directory: str) -> None:
    """The name server accepted a broker named `..`, and passed it on in routes."""
    valid = RegisterBroker("a.b_c-d", "host.internal:10911", "Default.Cluster", "[::1]:10912", 0)
    assert decode_header(Command(code=103, fields=encode_header(valid)), RegisterBroker) == valid
    header = msgspec.structs.replace(valid, **{member: directory})
    with pytest.raises(ProtocolError, match="Invalid (broker|cluster|haServer)(Name|Addr)"):
        decode_header(Command(code=103, fields=encode_header(header)), RegisterBroker)


def test_no_name_of_a_path_may_be_a_directory() -> None:
    paths = {member: rule for member, rule in rules.RULES.items() if rule and set(rules.PATH) & set(rule.forbidden)}
    assert {"broker_name", "cluster_name", "group", "topic_config_table", "filter_server_list"} <= paths.keys()
    for member, rule in paths.items():
        for name in rules.PARENTS:
            with pytest.raises(ProtocolError, match="expected a name, not a directory"):
                rule.check(member, name)
        rule.check(member, "...")
    with pytest.raises(ProtocolError, match="Invalid topicConfigTable"):
        rules.check(TopicTable(DataVersion(), {"..": TopicConfig(topic_name="T")}))


def test_a_rule_caches_a_bounded_number_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "REMEMBERED_VALUES", 2)
    rule = rules.FieldRule(1_000)
    for value in ("a", "b", "c", "x" * 500):
        rule.check("topic", value)
    assert rule.accepted == {"c"}
