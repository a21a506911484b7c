"""Message commands of `mqadmin`: Java's tools and ours print the same on one cluster, Ariane's and Java's, and writes have effect.

Documented differences, which the tests check one by one:

    queryMsgByKey        the columns are named #Unique Key and #Offset ID (added); Java calls either #Message ID
    queryMsgById         takes unique keys, too
    Properties           in the order in which they are stored; Java prints a hash table in its order
    absent messages      an error and exit status 1; Java prints a stack trace, or nothing, with status 0
    queryMsgTraceById    consumer groups sorted by name; Java prints a hash table in its order
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from interop_servers import consume, produce
from mqadmin_differential import CLUSTERS, Mask, run_both, run_json, run_ours, start_cluster

from ariane.cli.mqadmin.message_text import BODY_DIRECTORY
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
    one = cluster.sent[3]
    views = [run_json(cluster.namesrv, f"queryMsgById -i {one[name]}") for name in ("msgId", "offsetMsgId")]
    views.append(run_json(cluster.namesrv, f"queryMsgById -t T -i {one['msgId']}"))
    for view in views:
        assert view["message"]["messageId"] == one["msgId"]
        assert view["message"]["offsetMessageId"] == one["offsetMsgId"]
    # The online member has consumed the message before: by its group's offset, and once more directly.
    assert [(track["group"], track["state"]) for track in views[0]["tracks"]] == [(GROUP, "CONSUMED")]


def test_keys_are_listed_with_both_ids(cluster: Cluster) -> None:
    one = cluster.sent[5]
    (pair,) = run_both(cluster.namesrv, f"queryMsgByKey -t T -k {one['key']}")
    theirs, ours = pair.java.splitlines(), pair.ours.splitlines()
    assert [line[:96] for line in ours[1:]] == [line[:96] for line in theirs[1:]]  # the three columns of Java
    assert ours[0].split("#")[1:] == [f"{'Unique Key':<50}"[:-1] + " ", "QID" + " " * 34, "Offset ", "Offset ID"]
    assert ours[1].split() == [one["msgId"], str(one["queueId"]), str(one["queueOffset"]), one["offsetMsgId"]]


def test_traces_print_the_same(cluster: Cluster) -> None:
    (pair,) = run_both(cluster.namesrv, f"queryMsgTraceById -i {cluster.sent[0]['msgId']}")
    pair.assert_equal()
    assert "Pub " in pair.ours and "Sub " in pair.ours


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
    one = cluster.sent[1]
    client = next(iter(clients(cluster.namesrv)))
    direct = f"-g {GROUP} -d {client}"
    by_id, by_unique_key = run_both(
        cluster.namesrv,
        f"queryMsgById -i {one['offsetMsgId']} {direct}",
        f"queryMsgByUniqueKey -t T -i {one['msgId']} {direct}",
    )
    spent = Mask(r"spentTimeMills=\d+", "time that the listener took")
    by_id.assert_equal([spent])
    by_unique_key.assert_equal([spent])
    assert "consumeResult=CR_SUCCESS" in by_id.ours
    line = f"queryMsgById -i {one['offsetMsgId']} -s true"
    original = run_json(cluster.namesrv, f"queryMsgById -i {one['msgId']}")["message"]
    dry = run_ours(cluster.namesrv, f"{line} --dry-run")
    assert dry.output == f"would send a message of {len(original['body'])} bytes to topic T on broker-a\n"
    done = run_ours(cluster.namesrv, line)
    found = re.fullmatch(
        rf"prepare resend msg\. originalMsgId={one['offsetMsgId']}SendResult \[sendStatus=SEND_OK, msgId=(\w+), .*\]",
        done.output,
    )
    assert found, done
    copy = run_json(cluster.namesrv, f"queryMsgByUniqueKey -t T -i {found[1]}")["message"]
    assert (copy["body"], copy["properties"]["KEYS"]) == (original["body"], one["key"])
    assert copy["properties"]["REPLAYED_FROM"].endswith(str(one["msgId"]))


def clients(namesrv: str) -> set[str]:
    """Return the ids of the online members of GROUP."""
    from interop_servers import mqadmin

    (printed,) = mqadmin(namesrv, f"consumerConnection -g {GROUP}")
    return {line.split()[0] for line in printed.splitlines() if "@" in line.split(" ")[0]}
