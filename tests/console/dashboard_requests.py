"""Requests of scripts to rocketmq-dashboard, in the order in which they are recorded and replayed.

Texts in braces are placeholders for values that differ from run to run: addresses, ids and times (`Content.names`, and `now`,
`begin` and `end` in ms, `today` as a date). `versions` are those that have the endpoint; the others answer 404.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

OLD, NEW = "1.0.0", "2.1.0"
BOTH = (OLD, NEW)


class DashboardRequest(NamedTuple):
    """One request.

    Attributes:
        name: Unique name, by which recorded answers and intended differences are found.
        method: HTTP method.
        path: Path.
        params: Parameters of the query string; of the form for a POST without `body`.
        body: Body that is sent as JSON.
        versions: Versions of rocketmq-dashboard that are recorded.
        is_logged_in: Whether a session is used, for the recording in which a login is required.
    """

    name: str
    method: str
    path: str
    params: Mapping[str, str] = {}
    body: Any = None
    versions: tuple[str, ...] = BOTH
    is_logged_in: bool = True

    @property
    def area(self) -> str:
        """The first part of the path; recordings of an area are stored in one file."""
        return self.path.split("/")[1]


def get(name: str, path: str, versions: tuple[str, ...] = BOTH, **params: str) -> DashboardRequest:
    return DashboardRequest(name, "GET", path, params, None, versions)


def form(name: str, path: str, versions: tuple[str, ...] = BOTH, **params: str) -> DashboardRequest:
    return DashboardRequest(name, "POST", path, params, None, versions)


def json_body(name: str, path: str, body: Any, versions: tuple[str, ...] = BOTH) -> DashboardRequest:
    return DashboardRequest(name, "POST", path, {}, body, versions)


def fill(value: Any, names: Mapping[str, str]) -> Any:
    """Replace the placeholders. A text that is one placeholder of a time becomes a number."""
    if isinstance(value, str):
        if value in ("{now}", "{begin}", "{end}"):
            return int(names[value[1:-1]])
        return re.sub(r"\{(\w+)\}", lambda match: names[match[1]], value)
    if isinstance(value, Mapping):
        return {key: fill(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, names) for item in value]
    return value


def times() -> dict[str, str]:
    """Return the placeholders of times: now, an hour before and after, and the day."""
    now = int(time.time() * 1000)
    hour = 3_600_000
    today = time.strftime("%Y-%m-%d", time.localtime())
    return {"now": str(now), "begin": str(now - hour), "end": str(now + hour), "today": today}


def page(topic: str, number: int = 1, size: int = 4, task: str = "") -> dict[str, Any]:
    return {
        "topic": topic, "begin": "{begin}", "end": "{end}", "pageNum": number, "pageSize": size, "taskId": task,
    }  # fmt: skip


def reset(group: str, time: str | int, *, force: bool = True) -> dict[str, Any]:
    return {"consumerGroupList": [group], "topic": "orders", "resetTime": time, "force": force}


TOPIC = {
    "clusterNameList": ["DefaultCluster"], "brokerNameList": ["broker-a"], "topicName": "invoices",
    "writeQueueNums": 2, "readQueueNums": 2, "perm": 6, "order": False,
}  # fmt: skip
GROUP = {
    "clusterNameList": ["DefaultCluster"], "brokerNameList": ["broker-a"],
    "subscriptionGroupConfig": {
        "groupName": "print", "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
        "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    },
}  # fmt: skip
DEAD_LETTER = {"topicName": "%DLQ%billing", "consumerGroup": "billing", "msgId": "{dead_letter_id}"}
MISSING_DEAD_LETTER = {"topicName": "%DLQ%billing", "consumerGroup": "billing", "msgId": "7F0000010000000000000000"}

READS = (
    get("clusters", "/cluster/list.query"),
    get("broker-config", "/cluster/brokerConfig.query", brokerAddr="{broker}"),
    get("broker-config-of-nobody", "/cluster/brokerConfig.query", brokerAddr="127.0.0.1:1"),
    get("broker-config-without-address", "/cluster/brokerConfig.query"),
    get("topics", "/topic/list.query"),
    get("topics-without-system", "/topic/list.query", skipSysProcess="true", skipRetryAndDlq="true"),
    get("topic-types", "/topic/list.queryTopicType", (NEW,)),
    get("topic-stats", "/topic/stats.query", topic="orders"),
    get("topic-stats-of-missing", "/topic/stats.query", topic="missing"),
    get("topic-route", "/topic/route.query", topic="orders"),
    get("topic-route-of-missing", "/topic/route.query", topic="missing"),
    get("topic-consumers", "/topic/queryConsumerByTopic.query", topic="orders"),
    get("topic-consumers-of-empty", "/topic/queryConsumerByTopic.query", topic="empty"),
    get("topic-groups", "/topic/queryTopicConsumerInfo.query", topic="orders"),
    get("topic-config", "/topic/examineTopicConfig.query", topic="orders"),
    get("topic-config-of-broker", "/topic/examineTopicConfig.query", topic="orders", brokerName="broker-a"),
    get("topic-config-of-missing-broker", "/topic/examineTopicConfig.query", topic="orders", brokerName="nobody"),
    get("groups", "/consumer/groupList.query"),
    get("groups-without-system", "/consumer/groupList.query", (NEW,), skipSysGroup="true"),
    get("groups-refreshed", "/consumer/group.refresh.all", (NEW,), address="{broker}"),
    get("group-refreshed", "/consumer/group.refresh", (NEW,), address="", consumerGroup="stock"),
    get("group-online", "/consumer/group.query", consumerGroup="stock"),
    get("group-offline", "/consumer/group.query", consumerGroup="audit"),
    get("group-unused", "/consumer/group.query", consumerGroup="unused"),
    get("group-missing", "/consumer/group.query", consumerGroup="missing"),
    get("group-config", "/consumer/examineSubscriptionGroupConfig.query", consumerGroup="stock"),
    get("group-brokers", "/consumer/fetchBrokerNameList.query", consumerGroup="stock"),
    get("group-topics", "/consumer/queryTopicByConsumer.query", consumerGroup="stock", address="{broker}"),
    get("group-topics-offline", "/consumer/queryTopicByConsumer.query", consumerGroup="audit", address="{broker}"),
    get("group-topics-unused", "/consumer/queryTopicByConsumer.query", consumerGroup="unused", address="{broker}"),
    get("group-topics-without-address", "/consumer/queryTopicByConsumer.query", consumerGroup="stock"),
    get("group-connections", "/consumer/consumerConnection.query", consumerGroup="stock", address="{broker}"),
    get("group-connections-offline", "/consumer/consumerConnection.query", consumerGroup="audit", address="{broker}"),
    get("group-connections-without-address", "/consumer/consumerConnection.query", consumerGroup="stock"),
    get("client", "/consumer/consumerRunningInfo.query", consumerGroup="stock", clientId="{stock_client}", jstack="false"),
    get(
        "client-stacks", "/consumer/consumerRunningInfo.query", consumerGroup="stock", clientId="{stock_client}",
        jstack="true",
    ),
    get("client-missing", "/consumer/consumerRunningInfo.query", consumerGroup="stock", clientId="nobody", jstack="false"),
    get("producers", "/producer/producerConnection.query", producerGroup="shop", topic="orders"),
    get("producers-offline", "/producer/producerConnection.query", producerGroup="nobody", topic="orders"),
    get("message", "/message/viewMessage.query", topic="orders", msgId="{order_id}"),
    get("message-by-offset-id", "/message/viewMessage.query", topic="orders", msgId="{order_offset_id}"),
    get("message-missing", "/message/viewMessage.query", topic="orders", msgId="7F0000010000000000000000"),
    get("messages-of-key", "/message/queryMessageByTopicAndKey.query", topic="orders", key="ORDER-3"),
    get("messages-of-missing-key", "/message/queryMessageByTopicAndKey.query", topic="orders", key="ORDER-99"),
    get("messages-of-topic", "/message/queryMessageByTopic.query", topic="orders", begin="{begin}", end="{end}"),
    json_body("messages-page", "/message/queryMessagePageByTopic.query", page("orders")),
    json_body("messages-next-page", "/message/queryMessagePageByTopic.query", page("orders", 2, task="{task}")),
    json_body("messages-page-of-empty", "/message/queryMessagePageByTopic.query", page("empty")),
    json_body("messages-page-of-missing", "/message/queryMessagePageByTopic.query", page("missing")),
    get("traced-message", "/messageTrace/viewMessage.query", topic="orders", msgId="{order_id}"),
    get("trace-events", "/messageTrace/viewMessageTraceDetail.query", msgId="{order_id}"),
    get("trace-events-missing", "/messageTrace/viewMessageTraceDetail.query", msgId="7F0000010000000000000000"),
    get("trace", "/messageTrace/viewMessageTraceGraph.query", msgId="{order_id}", traceTopic="RMQ_SYS_TRACE_TOPIC"),
    get("trace-of-default-topic", "/messageTrace/viewMessageTraceGraph.query", msgId="{order_id}"),
    get("trace-of-transaction", "/messageTrace/viewMessageTraceGraph.query", msgId="{paid_id}"),
    get("trace-missing", "/messageTrace/viewMessageTraceGraph.query", msgId="7F0000010000000000000000"),
    json_body("dead-letters", "/dlqMessage/queryDlqMessageByConsumerGroup.query", page("%DLQ%billing"), (NEW,)),
    json_body("dead-letters-of-none", "/dlqMessage/queryDlqMessageByConsumerGroup.query", page("%DLQ%unused"), (NEW,)),
    get("dead-letter-file", "/dlqMessage/exportDlqMessage.do", (NEW,), consumerGroup="billing", msgId="{dead_letter_id}"),
    get(
        "dead-letter-file-missing", "/dlqMessage/exportDlqMessage.do", (NEW,), consumerGroup="billing",
        msgId="7F0000010000000000000000",
    ),
    json_body("dead-letters-file", "/dlqMessage/batchExportDlqMessage.do", [DEAD_LETTER, MISSING_DEAD_LETTER], (NEW,)),
    get("home", "/ops/homePage.query"),
    get("status", "/ops/rocketMqStatus.query"),
    get("name-servers", "/rocketmq/nsaddr", (OLD,)),
    get("name-servers-new", "/rocketmq/nsaddr.query", (NEW,)),
    get("login-check", "/login/check.query"),
    get("proxies", "/proxy/homePage.query", (NEW,)),
    get("monitors", "/monitor/consumerMonitorConfig.query"),
    get("users", "/acl/users.query", (NEW,), clusterName="DefaultCluster", brokerName="broker-a"),
    get("acls", "/acl/acls.query", (NEW,), clusterName="DefaultCluster", brokerName="broker-a"),
    get("csrf-token", "/rocketmq-dashboard/csrf-token", (NEW,)),
)  # fmt: skip

CHANGES = (
    json_body("create-topic", "/topic/createOrUpdate.do", TOPIC),
    json_body("change-topic", "/topic/createOrUpdate.do", {**TOPIC, "writeQueueNums": 3, "readQueueNums": 3}),
    json_body("create-topic-nowhere", "/topic/createOrUpdate.do", {**TOPIC, "clusterNameList": [], "brokerNameList": []}),
    json_body("create-topic-of-bad-name", "/topic/createOrUpdate.do", {**TOPIC, "topicName": "bad name"}),
    json_body(
        "send-message", "/topic/sendTopicMessage.do",
        {"topic": "invoices", "key": "INVOICE-1", "tag": "new", "messageBody": "one", "traceEnabled": False},
    ),
    json_body(
        "send-message-to-missing", "/topic/sendTopicMessage.do",
        {"topic": "missing", "key": "K", "tag": "T", "messageBody": "one", "traceEnabled": False},
    ),
    form("delete-topic-of-broker", "/topic/deleteTopicByBroker.do", brokerName="broker-a", topic="invoices"),
    form("delete-topic", "/topic/deleteTopic.do", clusterName="DefaultCluster", topic="invoices"),
    form("delete-topic-of-all", "/topic/deleteTopic.do", topic="empty"),
    json_body("create-group", "/consumer/createOrUpdate.do", GROUP),
    json_body("create-group-nowhere", "/consumer/createOrUpdate.do", {**GROUP, "clusterNameList": [], "brokerNameList": []}),
    json_body("delete-group", "/consumer/deleteSubGroup.do", {"groupName": "print", "brokerNameList": ["broker-a"]}),
    json_body("reset-offline", "/consumer/resetOffset.do", reset("audit", "{begin}")),
    json_body("skip-offline", "/consumer/skipAccumulate.do", reset("audit", -1)),
    json_body("reset-online", "/consumer/resetOffset.do", reset("stock", "{begin}")),
    json_body("reset-missing", "/consumer/resetOffset.do", reset("missing", "{begin}")),
    form(
        "consume-directly", "/message/consumeMessageDirectly.do", topic="orders", consumerGroup="stock",
        msgId="{order_id}", clientId="{stock_client}",
    ),
    form(
        "consume-anywhere", "/message/consumeMessageDirectly.do", topic="orders", consumerGroup="stock",
        msgId="{order_id}",
    ),
    form(
        "consume-offline", "/message/consumeMessageDirectly.do", topic="orders", consumerGroup="audit",
        msgId="{order_id}",
    ),
    json_body("resend-dead-letters", "/dlqMessage/batchResendDlqMessage.do", [DEAD_LETTER], (NEW,)),
    form(
        "set-monitor", "/monitor/createOrUpdateConsumerMonitor.do", consumeGroupName="stock", minCount="1",
        maxDiffTotal="100",
    ),
    get("monitors-after-set", "/monitor/consumerMonitorConfig.query"),
    get("monitor", "/monitor/consumerMonitorConfigByGroupName.query", consumeGroupName="stock"),
    get("monitor-missing", "/monitor/consumerMonitorConfigByGroupName.query", consumeGroupName="audit"),
    form("set-bad-monitor", "/monitor/createOrUpdateConsumerMonitor.do", consumeGroupName="stock", minCount="x", maxDiffTotal="1"),
    form("delete-monitor", "/monitor/deleteConsumerMonitor.do", consumeGroupName="stock"),
    form("add-name-server", "/ops/addNameSvrAddr.do", (NEW,), newNamesrvAddr="127.0.0.1:1"),
    form("set-name-servers", "/ops/updateNameSvrAddr.do", nameSvrAddrList="{namesrv}"),
    form("set-vip-channel", "/ops/updateIsVIPChannel.do", useVIPChannel="false"),
    form("set-tls", "/ops/updateUseTLS.do", useTLS="false"),
    form("add-proxy", "/proxy/addProxyAddr.do", (NEW,), newProxyAddr="127.0.0.1:1"),
    form("set-proxy", "/proxy/updateProxyAddr.do", (NEW,), proxyAddr="127.0.0.1:1"),
    json_body(
        "create-user", "/acl/createUser.do",
        {
            "clusterName": "DefaultCluster", "brokerName": "broker-a",
            "userInfo": {"username": "reader", "password": "reader-1234", "userType": "Normal", "userStatus": "enable"},
        },
        (NEW,),
    ),
    get("charts-brokers", "/dashboard/broker.query", date="{today}"),
    get("charts-brokers-of-another-day", "/dashboard/broker.query", date="2001-01-01"),
    get("charts-topics", "/dashboard/topic.query", date="{today}"),
    get("charts-topic", "/dashboard/topic.query", date="{today}", topicName="orders"),
    get("charts-topic-missing", "/dashboard/topic.query", date="{today}", topicName="missing"),
    get("charts-current-topics", "/dashboard/topicCurrent", (OLD,)),
    get("charts-current-topics-new", "/dashboard/topicCurrent.query", (NEW,)),
    get("unknown-path", "/topic/missing.query"),
)  # fmt: skip

# With a login that is required; `ordinary` is a user without rights to change.
LOGIN = (
    get("check-logged-out", "/login/check.query"),
    get("page-logged-out", "/topic/list.query"),
    form("login-wrong", "/login/login.do", username="operator", password="wrong"),
    form("login", "/login/login.do", username="operator", password="{password}"),
    get("check-logged-in", "/login/check.query"),
    get("page-logged-in", "/topic/route.query", topic="orders"),
    form("logout", "/login/logout.do"),
    get("check-after-logout", "/login/check.query"),
    form("login-ordinary", "/login/login.do", username="viewer", password="{password}"),
    form("change-ordinary", "/topic/deleteTopicByBroker.do", brokerName="broker-a", topic="missing"),
)
