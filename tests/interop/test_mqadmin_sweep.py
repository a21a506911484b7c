"""Every command of Java's mqadmin 4.9.4 against our name server and broker: `COVERED` names the test file of each command.

Commands covered by other files are not repeated. The tests check the output of the commands for data sent before.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from interop_servers import consume, mqadmin, produce

from ariane.testing import LocalCluster, java

SENT = 12
SWEEP = "test_mqadmin_sweep.py"
CLIENTS = "test_java_clients.py"
ADMINISTRATION = "test_java_administration.py"
STATISTICS = "test_java_statistics.py"
REACH = "test_retries_java.py"
KEYS = "test_query_by_key.py"
REPLICATION = "test_java_replication.py"

COVERED = {
    # topics
    "updateTopic": SWEEP,
    "deleteTopic": CLIENTS,
    "updateTopicPerm": SWEEP,
    "topicRoute": SWEEP,
    "topicStatus": SWEEP,
    "topicClusterList": SWEEP,
    "topicList": CLIENTS,
    "updateOrderConf": SWEEP,
    "allocateMQ": SWEEP,
    # groups
    "updateSubGroup": SWEEP,
    "deleteSubGroup": SWEEP,
    "getConsumerConfig": SWEEP,
    "consumerProgress": STATISTICS,
    "consumerStatus": REACH,
    "consumerConnection": CLIENTS,
    "producerConnection": SWEEP,
    "producer": ADMINISTRATION,
    # offsets
    "cloneGroupOffset": SWEEP,
    "resetOffsetByTime": REACH,
    "skipAccumulatedMessage": SWEEP,
    # messages
    "queryMsgById": SWEEP,
    "queryMsgByKey": KEYS,
    "queryMsgByUniqueKey": KEYS,
    "queryMsgByOffset": SWEEP,
    "queryMsgTraceById": SWEEP,
    "printMsg": SWEEP,
    "printMsgByQueue": SWEEP,
    "sendMessage": SWEEP,
    "consumeMessage": REACH,
    "checkMsgSendRT": SWEEP,
    "sendMsgStatus": SWEEP,
    "queryCq": ADMINISTRATION,
    # brokers and clusters
    "updateBrokerConfig": ADMINISTRATION,
    "getBrokerConfig": ADMINISTRATION,
    "brokerStatus": STATISTICS,
    "brokerConsumeStats": STATISTICS,
    "cleanExpiredCQ": ADMINISTRATION,
    "cleanUnusedTopic": ADMINISTRATION,
    "deleteExpiredCommitLog": REPLICATION,
    "clusterList": SWEEP,
    "clusterRT": SWEEP,
    "statsAll": STATISTICS,
    "wipeWritePerm": SWEEP,
    "addWritePerm": SWEEP,
    # name server
    "updateKvConfig": SWEEP,
    "deleteKvConfig": SWEEP,
    "getNamesrvConfig": SWEEP,
    "updateNamesrvConfig": SWEEP,
    # accounts
    "updateAclConfig": ADMINISTRATION,
    "deleteAclConfig": ADMINISTRATION,
    "clusterAclConfigVersion": ADMINISTRATION,
    "updateGlobalWhiteAddr": ADMINISTRATION,
    "getAclConfig": ADMINISTRATION,
    # exports
    "exportMetadata": SWEEP,
    "exportConfigs": SWEEP,
    "exportMetrics": SWEEP,
}
# A loop with one round a minute: sends the requests of consumerProgress and consumerStatus, and logs to an unread file.
LEFT_OUT = {"startMonitoring"}


class Used(NamedTuple):
    """Start a cluster with SENT traced messages in T with alternating tags A and B, consumed by group G with an online member."""

    namesrv: str
    broker: str
    sent: list[dict[str, Any]]
    home: Path


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    home = tmp_path_factory.mktemp("used")
    with LocalCluster(home) as servers:
        namesrv, addr = servers.namesrv, servers.broker.addr
        sent = produce(namesrv, SENT, "tags=A,B", "trace")
        assert len(consume(namesrv, "G", "*", SENT, "trace")) == SENT
        with java.start("ariane.peers.Consume", [namesrv, "T", "G", "*", "0", "600"]) as consumer:
            produce(namesrv, 1, "tags=C", "keys=Last")
            next(consumer.events(time.monotonic() + 60))  # it is online, and has stored no offset of its own yet
            yield Used(namesrv, addr, sent, home)


def rows(printed: str) -> list[list[str]]:
    """Return the words of each table line that contains broker-a."""
    return [line.split() for line in printed.splitlines() if "broker-a" in line.split()]


def test_every_command_is_covered() -> None:
    printed = java.run(java.ADMIN, [])
    commands = {match[1] for line in printed if (match := re.match(r"   (\w+) +\S", line))}
    assert commands == COVERED.keys() | LEFT_OUT
    local = Path(__file__).parent
    for command, file in COVERED.items():
        text = (local / file).read_text()
        if file == SWEEP:
            text = text.partition("class Used")[2]
        assert re.search(rf'"{command}[ "]', text), (command, file)


def test_group_commands(used: Used) -> None:
    created, shown, removed, gone = mqadmin(
        used.namesrv,
        f"updateSubGroup -b {used.broker} -g S -r 3 -q 2",
        "getConsumerConfig -g S",
        f"deleteSubGroup -b {used.broker} -g S -r true",
        "getConsumerConfig -g S",
    )
    assert "success" in created
    settings = dict(re.findall(r"^(\w+)\s+=\s+(\w+)$", shown, re.MULTILINE))
    assert settings == {
        "groupName": "S",
        "consumeEnable": "true",
        "consumeFromMinEnable": "false",
        "consumeBroadcastEnable": "false",
        "retryQueueNums": "2",
        "retryMaxTimes": "3",
        "brokerId": "0",
        "whichBrokerWhenConsumeSlowly": "1",
        "notifyConsumerIdsChangedEnable": "true",
    }
    assert "delete subscription group [S]" in removed and "success" in removed
    assert gone == ""


def test_topic_and_permission_commands(used: Used) -> None:
    created, to_read, route, to_write, clusters, shared = mqadmin(
        used.namesrv,
        f"updateTopic -b {used.broker} -t Perm -r 3 -w 2",
        f"updateTopicPerm -b {used.broker} -t Perm -p 4",
        "topicRoute -t Perm -l",
        "updateTopicPerm -c DefaultCluster -t Perm -p 6",
        "topicClusterList -t Perm",
        "allocateMQ -t Perm -i 10.0.0.1,10.0.0.2",
    )
    assert "success" in created
    assert "from 6 to 4" in to_read and "perm=R--" in to_read
    ((*_, read, write, perm),) = [line.split() for line in route.splitlines() if "broker-a" in line]
    assert (read, write, perm) == ("3", "2", "4")
    assert "from 4 to 6" in to_write and "success" in to_write
    assert clusters == "DefaultCluster"
    by_ip = json.loads(shared)["result"]
    assert sorted(item["queueId"] for item in by_ip["10.0.0.1"] + by_ip["10.0.0.2"]) == [0, 1, 2]
    assert {item["topic"] for item in by_ip["10.0.0.1"]} == {"Perm"}


def test_ordered_topic_and_name_server_commands(used: Used) -> None:
    unset, set_, created, put, result, by_hand, made_route, removed, without, kept, kv, no_kv, refused = mqadmin(
        used.namesrv,
        "getNamesrvConfig",
        "updateNamesrvConfig -k orderMessageEnable -v true",
        f"updateTopic -b {used.broker} -t Ordered -r 4 -w 4 -o true",
        "updateOrderConf -t T -m put -v broker-a:3",
        "updateOrderConf -t T -m get",
        "topicRoute -t T",
        "topicRoute -t Ordered",
        "updateOrderConf -t T -m delete",
        "topicRoute -t T",
        "getNamesrvConfig",
        "updateKvConfig -s ORDER_TOPIC_CONFIG -k Ordered -v broker-a:2",
        "deleteKvConfig -s ORDER_TOPIC_CONFIG -k Ordered",
        "updateNamesrvConfig -k listenPort -v 1",
    )
    assert re.search(r"^orderMessageEnable\s+=\s+false$", unset, re.MULTILINE)
    assert "success" in set_
    assert "orderConf=[broker-a:4]create topic" in created
    assert "success" in put
    assert result == "get orderConf success. topic=[T], orderConf=[broker-a:3]"
    assert '"orderTopicConf":"broker-a:3"' in by_hand
    assert '"orderTopicConf":"broker-a:4"' in made_route
    assert "success" in removed
    assert "orderTopicConf" not in without
    assert re.search(r"^orderMessageEnable\s+=\s+true$", kept, re.MULTILINE)
    assert kv == "create or update kv config to namespace success."
    assert no_kv == "delete kv config from namespace success."
    assert "cannot be changed while the name server runs" in refused


def test_kv_values_are_stored_and_returned(used: Used) -> None:
    _, by_kv, _, none = mqadmin(
        used.namesrv,
        "updateKvConfig -s ORDER_TOPIC_CONFIG -k ByKv -v broker-a:2",
        "updateOrderConf -t ByKv -m get",
        "deleteKvConfig -s ORDER_TOPIC_CONFIG -k ByKv",
        "updateOrderConf -t ByKv -m get",
    )
    assert by_kv.endswith("orderConf=[broker-a:2]")
    assert "No config item, Namespace: ORDER_TOPIC_CONFIG Key: ByKv" in none


def test_write_permission_of_a_broker(used: Used) -> None:
    wiped, route, added, repeated = mqadmin(
        used.namesrv,
        "wipeWritePerm -b broker-a",
        "topicRoute -t T",
        "addWritePerm -b broker-a",
        "topicRoute -t T",
    )
    count = re.compile(r"in name server\[[\d.:]+\] OK, (\d+)")
    taken, given = count.search(wiped), count.search(added)
    assert taken is not None and given is not None
    assert int(taken[1]) == int(given[1]) > 1  # T and the topics of the system
    assert '"perm":4' in route
    assert '"perm":6' in repeated


def test_message_query_commands(used: Used) -> None:
    item = used.sent[4]
    by_offset, trace, tagged, early, by_queue, counted = mqadmin(
        used.namesrv,
        f"queryMsgByOffset -b broker-a -t T -i {item['queueId']} -o {item['queueOffset']}",
        f"queryMsgTraceById -i {item['msgId']}",
        "printMsg -t T -d true -s B",
        "printMsg -t T -e 2020-01-01#00:00:00:000",
        f"printMsgByQueue -a broker-a -t T -i {item['queueId']} -p true -d true -b 2020-01-01#00:00:00:000",
        f"printMsgByQueue -a broker-a -t T -i {item['queueId']} -f true",
    )
    shown = dict(re.findall(r"^([A-Z][\w ]+):\s+(.*)$", by_offset, re.MULTILINE))
    assert (shown["OffsetID"], shown["Topic"], shown["Tags"]) == (item["offsetMsgId"], "T", "[A]")
    assert (shown["Keys"], shown["Queue Offset"]) == (f"[{item['key']}]", str(item["queueOffset"]))
    assert Path(shown["Message Body Path"]).read_bytes() == b"message 4"

    pub, sub = (line.split() for line in trace.splitlines() if line.startswith(("Pub", "G ")) or "success" in line)
    assert (pub[0], pub[1], pub[-1]) == ("Pub", "P", "success")
    assert sub[-1] == "success"
    assert re.search(r"\bG\b", trace)

    id_and_body = re.compile(r"^MSGID: (\w+) .* BODY: (.*)$", re.MULTILINE)
    odd = {(str(used.sent[n]["msgId"]), f"message {n}") for n in range(1, SENT, 2)}
    assert set(id_and_body.findall(tagged)) == odd
    assert early.count("minOffset=0, maxOffset=0") == 4
    in_queue = {(str(other["msgId"]), f"message {n}") for n, other in enumerate(used.sent) if is_beside(other, item)}
    assert set(id_and_body.findall(by_queue)) >= in_queue
    assert f"Count: {len(in_queue)}" in counted


def is_beside(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["queueId"] == other["queueId"]


def test_messages_are_sent(used: Used) -> None:
    sent, by_key, to_broker, times, resent, status, connection = mqadmin(
        used.namesrv,
        "sendMessage -t New -p hello -k KEY9 -c A -b broker-a -i 2",
        "queryMsgByKey -t New -k KEY9",
        "sendMsgStatus -b broker-a -s 100 -c 5",
        "checkMsgSendRT -t Timed -a 5 -s 64",
        f"queryMsgById -i {used.sent[0]['offsetMsgId']} -s true -u none",
        "topicStatus -t Timed",
        "producerConnection -g CLIENT_INNER_PRODUCER -t T",
    )
    ((_, queue, state, message_id),) = rows(sent)
    assert (queue, state) == ("2", "SEND_OK")
    assert [message_id, "2", "0"] in [line.split() for line in by_key.splitlines()]
    assert to_broker.count("sendStatus=SEND_OK") == 5 and "topic=broker-a" in to_broker
    assert [row[2] for row in rows(times)] == ["true"] * 5
    assert "Avg RT:" in times
    assert "sendStatus=SEND_OK" in resent and str(used.sent[0]["msgId"]) in resent
    assert sum(int(row[3]) - int(row[2]) for row in rows(status)) == 5
    assert "JAVA" in connection and "V4_9_4" in connection  # the consumer that is online has such a producer


def test_offsets_are_copied_and_set(used: Used) -> None:
    cloned, back, ahead, online, status, decoded = mqadmin(
        used.namesrv,
        "cloneGroupOffset -s G -d Copy -t T",
        "resetOffsetByTimeOld -g Copy -t T -s 2020-01-01#00:00:00:000 -f true",  # registered by our peer only
        "skipAccumulatedMessage -g Copy -t T",
        "skipAccumulatedMessage -g G -t T -f true",
        "getConsumerStatus -g G -t T",  # the same
        f"decodeMessageId -i {used.sent[0]['offsetMsgId']}",  # the same
    )
    assert "success" in cloned
    # broker, queue, end of the queue, the group's offset, offset at the time, offset that was set
    assert sum(int(row[3]) for row in rows(back)) >= SENT
    assert [row[4:] for row in rows(back)] == [["0", "0"]] * 4
    for row in rows(ahead):
        assert (row[3], row[4]) == ("0", row[2])
        assert row[5] == row[2]
    ends = {row[1]: row[2] for row in rows(ahead)}
    assert {row[1]: row[2] for row in rows(online)} == ends
    assert {row[2]: row[3] for row in rows(status)} == ends
    assert "ip=127.0.0.1" in decoded


def test_cluster_commands(used: Used) -> None:
    listed, more = mqadmin(used.namesrv, "clusterList", "clusterList -m")
    ((cluster, _, broker_id, addr, version, *_),) = rows(listed)
    assert (cluster, broker_id, addr, version) == ("DefaultCluster", "0", used.broker, "V4_9_4")
    ((_, _, _, _, put, result),) = rows(more)
    assert int(put) >= SENT and int(result) >= SENT


def test_cluster_round_trip_times(used: Used) -> None:
    """The command runs until it is killed."""
    args = ["clusterRT", "-n", used.namesrv, "-a", "5", "-s", "64", "-i", "1"]
    with java.start(java.ADMIN, args) as program:
        line = next(line for line in program.lines(time.monotonic() + 60) if "broker-a" in line)
    assert line.split()[:2] == ["DefaultCluster", "broker-a"]
    assert line.split()[-2:] == ["5", "0"]


def test_export_commands(used: Used) -> None:
    home = used.home / "exports"
    printed = mqadmin(
        used.namesrv,
        f"exportMetadata -c DefaultCluster -f {home}/cluster",
        f"exportMetadata -b {used.broker} -t -f {home}/topics",
        f"exportMetadata -b {used.broker} -g -f {home}/groups",
        f"exportConfigs -c DefaultCluster -f {home}",
        f"exportMetrics -c DefaultCluster -f {home}",
    )
    assert ["success" in item for item in printed] == [True] * 5, printed

    def read(name: str) -> Any:
        return json.loads((home / name).read_text())

    both = read("cluster/metadata.json")
    assert both["topicConfigTable"]["T"]["writeQueueNums"] == 4
    assert both["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 16
    assert read("topics/topic.json")["topicConfigTable"]["T"]["perm"] == 6
    assert read("groups/subscriptionGroup.json")["subscriptionGroupTable"]["G"]["consumeEnable"] is True
    configs = read("configs.json")
    assert configs["clusterScale"] == {"namesrvSize": 1, "slaveBrokerSize": 0, "masterBrokerSize": 1}
    settings = configs["brokerConfigs"]["broker-a"]
    assert (settings["brokerName"], settings["brokerId"], settings["useTLS"]) == ("broker-a", "0", "false")
    assert settings["messageDelayLevel"].startswith("1s 5s 10s ")
    report = read("metrics.json")["evaluateReport"]["broker-a"]
    assert report["runtimeVersion"] == {"rocketmqVersion": "V4_9_4", "clientInfo": ["JAVA%V4_9_4"]}
    assert report["runtimeEnv"] == {"cpuNum": str(os.cpu_count())}
    assert report["runtimeQuota"]["groupSize"] >= 1
    assert float(report["runtimeQuota"]["messageAverageSize"]) > 100
