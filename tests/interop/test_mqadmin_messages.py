"""Message commands of `mqadmin`: Java's tools and ours print the same on one cluster, Ariane's and Java's, and writes have effect.

Documented differences, which the tests check one by one:

    queryMsgByKey        the columns are named #Unique Key and #Offset ID (added); Java calls either #Message ID
    queryMsgById         takes unique keys, too
    Properties           in the order in which they are stored; Java prints a hash table in its order
    absent messages      an error and exit status 1; Java prints a stack trace, or nothing, with status 0
    printMsg, -ByQueue   queues sorted; nothing beyond --endTimestamp, where Java completes its page of 32
    consumeMessage       the limit is exact; Java subtracts one message too many for each queue
    sendMessage          a queue that needs a broker is an invalid line (exit status 2); Java prints a remark
    queryMsgTraceById    consumer groups sorted by name; Java prints a hash table in its order
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from interop_servers import consume, produce
from mqadmin_differential import CLUSTERS, Mask, run_both, run_json, run_ours, start_cluster

from ariane.cli.mqadmin import command_registry
from ariane.cli.mqadmin.message_text import BODY_DIRECTORY
from ariane.cli.mqadmin.option_parser import create_parser
from ariane.cluster.admin import Admin
from ariane.errors import ArianeError
from ariane.model.message import Message
from ariane.testing import java

SENT = 12
GROUP = "G"

_PROPERTIES = re.compile(r"(?<=\{)[^{}]*(?=\})")


class Cluster(NamedTuple):
    """A cluster with SENT traced messages in T with tags A and B, consumed by G, which has an online member."""

    namesrv: str
    sent: list[dict[str, Any]]


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as servers:
        sent = produce(servers.namesrv, SENT, "tags=A,B", "trace")
        assert len(consume(servers.namesrv, GROUP, "*", SENT, "trace")) == SENT
        with java.start("ariane.peers.Consume", [servers.namesrv, "T", GROUP, "*", "0", "600"]) as consumer:
            produce(servers.namesrv, 1, "tags=C", "keys=Last")
            next(consumer.events(time.monotonic() + 60))  # it is online
            yield Cluster(servers.namesrv, sent)


def sorted_properties(text: str) -> str:
    """Return a text with the entries of every map in order."""
    return _PROPERTIES.sub(lambda found: ", ".join(sorted(found[0].split(", "))), text)


def test_look_ups_print_the_same(cluster: Cluster) -> None:
    first, last = cluster.sent[0], cluster.sent[-1]
    by_id, by_unique_key, by_offset = run_both(
        cluster.namesrv,
        f"queryMsgById -i {first['offsetMsgId']},{last['offsetMsgId']}",
        f"queryMsgByUniqueKey -t T -i {first['msgId']}",
        f"queryMsgByOffset -t T -b broker-a -i {first['queueId']} -o {first['queueOffset']}",
    )
    for pair in (by_id, by_unique_key, by_offset):
        assert (pair.status, pair.error) == (0, ""), pair
        assert sorted_properties(pair.ours) == sorted_properties(pair.java)
        assert "trackType=CONSUMED, exceptionDesc=null" in pair.ours
    body = run_json(cluster.namesrv, f"queryMsgById -i {first['msgId']}")["message"]["body"]
    assert (BODY_DIRECTORY / str(first["msgId"])).read_bytes() == body.encode() != b""


def test_ids_of_any_kind_are_found(cluster: Cluster) -> None:
    item = cluster.sent[3]
    views = [run_json(cluster.namesrv, f"queryMsgById -i {item[name]}") for name in ("msgId", "offsetMsgId")]
    views.append(run_json(cluster.namesrv, f"queryMsgById -t T -i {item['msgId']}"))
    for view in views:
        assert view["message"]["messageId"] == item["msgId"]
        assert view["message"]["offsetMessageId"] == item["offsetMsgId"]
    # The online member has consumed the message before: by its group's offset, and once more directly.
    assert [(track["group"], track["state"]) for track in views[0]["tracks"]] == [(GROUP, "CONSUMED")]


def test_keys_are_listed_with_both_ids(cluster: Cluster) -> None:
    item = cluster.sent[5]
    (pair,) = run_both(cluster.namesrv, f"queryMsgByKey -t T -k {item['key']}")
    theirs, ours = pair.java.splitlines(), pair.ours.splitlines()
    assert [line[:96] for line in ours[1:]] == [line[:96] for line in theirs[1:]]  # the three columns of Java
    assert ours[0].split("#")[1:] == [f"{'Unique Key':<50}"[:-1] + " ", "QID" + " " * 34, "Offset ", "Offset ID"]
    assert ours[1].split() == [item["msgId"], str(item["queueId"]), str(item["queueOffset"]), item["offsetMsgId"]]


def test_traces_print_the_same(cluster: Cluster) -> None:
    (pair,) = run_both(cluster.namesrv, f"queryMsgTraceById -i {cluster.sent[0]['msgId']}")
    pair.assert_equal()
    assert "Pub " in pair.ours and "Sub " in pair.ours


def test_printed_queues_are_the_same(cluster: Cluster) -> None:
    lines = (
        "printMsg -t T",
        "printMsg -t T -s A||B -d false",
        "printMsg -t T -s A -c ISO-8859-1",
        "printMsg -t T -s none",
        "printMsg -t T -e 1000",
        "printMsgByQueue -t T -a broker-a -i 1 -p true -d true -f true",
        "printMsgByQueue -t T -a broker-a -i 1",
        "consumeMessage -t T",
        "consumeMessage -t T -b broker-a -i 1 -o 1",
        "consumeMessage -t T -b broker-a -i 1 -c 1",
        "consumeMessage -t T -b broker-a -i 1 -o 4711",
    )
    for pair in run_both(cluster.namesrv, *lines):
        note = "No message stored from the beginning to 1970-01-01 00:00:01.000 UTC. " if "-e 1000" in pair.line else ""
        assert (pair.status, pair.error) == (0, note and f"{note}Remove -e to print all store times.\n"), pair
        theirs, ours = (sorted(sorted_properties(text).splitlines()) for text in (pair.java, pair.ours))
        assert ours == theirs, pair.line
    everything = run_ours(cluster.namesrv, lines[0]).output
    assert all(str(one["msgId"]) in everything for one in cluster.sent)


def test_limits_and_conditions_of_consume_message_are_checked(cluster: Cluster) -> None:
    limited = run_ours(cluster.namesrv, "consumeMessage -t T -c 5").output
    assert limited.count("MSGID: ") == 5
    for line, reason in (
        ("consumeMessage -t T -i 0", "needs --brokerName"),
        ("consumeMessage -t T -b broker-a -o 0", "needs --queueId"),
        ("consumeMessage -t T -c 0", "at least 1"),
        ("consumeMessage -t T -e 32503680000000", "in the future"),
        ("consumeMessage -t T -s 2000 -e 1000", "after --endTimestamp"),
        ("sendMessage -t T -p x -i 0", "needs --broker"),
    ):
        output, error, status = run_ours(cluster.namesrv, line)
        assert (output, status) == ("", 2), line
        assert reason in error, error


def test_sent_messages_are_stored(cluster: Cluster) -> None:
    fields = Mask(r"(?m)SEND_OK +\w+|^broker-a +\d", "queue and id of a new message")
    any_queue, one_queue = run_both(
        cluster.namesrv, "sendMessage -t T -p hello -k Sent -c C", "sendMessage -t T -p hello -b broker-a -i 1 -m true"
    )
    any_queue.assert_equal([fields])
    one_queue.assert_equal([fields])
    assert one_queue.ours.splitlines()[1].split()[:3] == ["broker-a", "1", "SEND_OK"]
    sent = run_json(cluster.namesrv, "queryMsgByKey -t T -k Sent")
    assert [(one["body"], one["properties"]["TAGS"]) for one in sent] == [("hello", "C")] * 2  # Java's and ours
    assert run_ours(cluster.namesrv, "sendMessage -t T -p hello -k Dry --dry-run").output.startswith("would send")
    assert run_ours(cluster.namesrv, "queryMsgByKey -t T -k Dry").status == 1


def test_response_times_are_measured(cluster: Cluster) -> None:
    numbers = Mask(r"rt=\d+ms|[mM]sgId=\w+|Offset=\d+|queueId=\d", "times and places")
    status, send_time = run_both(
        cluster.namesrv, "sendMsgStatus -b broker-a -s 100 -c 2", "checkMsgSendRT -t T -a 3 -s 10"
    )
    status.assert_equal([numbers])
    theirs, ours = send_time.fields("broker-a")
    assert [row[:3] for row in ours] == [row[:3] for row in theirs]  # queues in the same order
    assert send_time.ours.splitlines()[0] == send_time.java.splitlines()[0]
    assert re.fullmatch(r"Avg RT: \d+\.\d\d", send_time.ours.splitlines()[-1])
    assert run_ours(cluster.namesrv, "checkMsgSendRT -t T --dry-run").output == (
        "would send 100 messages of 128 bytes to topic T on broker-a\n"
    )


def test_cluster_rt_prints_a_round_of_all_brokers(cluster: Cluster) -> None:
    command = command_registry.load("clusterRT")

    async def rounds(*arguments: str) -> list[str]:
        options = create_parser(command, "", "mqadmin").parse_args(list(arguments))
        async with Admin(cluster.namesrv) as admin, contextlib.aclosing(command.run(admin, options)) as outputs:
            return [(await anext(outputs)).text for _ in range(2)]

    first, second = asyncio.run(rounds("-a", "3", "-i", "1"))
    header, row = first.splitlines()
    assert header == f"{'#Cluster Name':<24}  {'#Broker Name':<24}  #RT   #successCount  #failCount"
    assert row.split()[:2] == ["DefaultCluster", "broker-a"]
    assert row.split()[3:] == second.split()[3:] == ["3", "0"]
    log, _ = asyncio.run(rounds("-a", "2", "-i", "1", "-p", "true", "-m", "room"))
    assert re.fullmatch(r"[\d-]+ [\d:]+\|room\|DefaultCluster\|broker-a\|\d+\n", log)


def test_absent_messages_fail_with_the_reason(cluster: Cluster) -> None:
    absent = f"{cluster.sent[0]['msgId'][:-4]}FFFF"
    for line in (
        f"queryMsgById -i {absent}",
        f"queryMsgByUniqueKey -t T -i {absent}",
        "queryMsgByKey -t T -k none",
        "queryMsgByOffset -t T -b broker-a -i 0 -o 4711",
    ):
        output, error, status = run_ours(cluster.namesrv, line)
        assert (output, status) == ("", 1), line
        assert error.startswith("Error: no message"), error


def test_a_message_is_consumed_directly_and_sent_again(cluster: Cluster) -> None:
    item = cluster.sent[1]
    client = next(iter(clients(cluster.namesrv)))
    direct = f"-g {GROUP} -d {client}"
    by_id, by_unique_key = run_both(
        cluster.namesrv,
        f"queryMsgById -i {item['offsetMsgId']} {direct}",
        f"queryMsgByUniqueKey -t T -i {item['msgId']} {direct}",
    )
    spent = Mask(r"spentTimeMills=\d+", "time that the listener took")
    by_id.assert_equal([spent])
    by_unique_key.assert_equal([spent])
    assert "consumeResult=CR_SUCCESS" in by_id.ours
    line = f"queryMsgById -i {item['offsetMsgId']} -s true"
    original = run_json(cluster.namesrv, f"queryMsgById -i {item['msgId']}")["message"]
    dry = run_ours(cluster.namesrv, f"{line} --dry-run")
    assert dry.output == f"would send a message of {len(original['body'])} bytes to topic T on broker-a\n"
    done = run_ours(cluster.namesrv, line)
    match = re.fullmatch(
        rf"prepare resend msg\. originalMsgId={item['offsetMsgId']}SendResult \[sendStatus=SEND_OK, msgId=(\w+), .*\]",
        done.output,
    )
    assert match, done
    copy = run_json(cluster.namesrv, f"queryMsgByUniqueKey -t T -i {match[1]}")["message"]
    assert (copy["body"], copy["properties"]["KEYS"]) == (original["body"], item["key"])
    assert copy["properties"]["REPLAYED_FROM"].endswith(str(item["msgId"]))


def clients(namesrv: str) -> set[str]:
    """Return the ids of the online members of GROUP."""
    from interop_servers import mqadmin

    (printed,) = mqadmin(namesrv, f"consumerConnection -g {GROUP}")
    return {line.split()[0] for line in printed.splitlines() if "@" in line.split(" ")[0]}


def test_delayed_messages_of_levels_are_listed(cluster: Cluster) -> None:
    async def run() -> None:
        async with Admin(cluster.namesrv) as admin:
            sent = await admin.send_message(Message(topic="T", body=b"later", delay_level=18))
            assert sent is not None
            (delayed,) = (await admin.list_delayed()).messages
            assert (delayed.message.message_id, delayed.topic, delayed.level) == (sent.message_id, "T", 18)
            assert delayed.due_ms == delayed.message.store_ms + 2 * 3_600_000
            for message_id in (sent.message_id, sent.offset_message_id):
                with pytest.raises(ArianeError, match=r"delay level 18 and cannot be cancelled.*V4_9_4"):
                    await admin.cancel_delayed(message_id)

    asyncio.run(run())
