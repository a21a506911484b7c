"""Bodies of requests from brokers to clients, as Java writes and reads them."""

from __future__ import annotations

import pytest

from ariane.errors import ProtocolError
from ariane.model.message import MessageQueue
from ariane.protocol import fastjson
from ariane.protocol.requests import callbacks
from ariane.protocol.requests.callbacks import DirectResult, ProcessQueueInfo, RunningInfo
from ariane.protocol.requests.clients import WireQueue

QUEUE = MessageQueue("T1", "broker-a", 3)
KEYED = b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"T1"}:7}}'
QUOTED = rb'{"offsetTable":{"{\"brokerName\":\"broker-a\",\"queueId\":3,\"topic\":\"T1\"}":"7"}}'
LISTED = b'{"offsetTable":[{"brokerName":"broker-a","offset":7,"queueId":3,"topic":"T1"}]}'


def test_offsets_are_written_as_java_writes_them() -> None:
    assert callbacks.reset_body({QUEUE: 7}) == KEYED
    assert callbacks.reset_body({QUEUE: 7}, as_list=True) == LISTED


@pytest.mark.parametrize("body", [KEYED, QUOTED, LISTED])
def test_offsets_are_read_in_every_format(body: bytes) -> None:
    assert callbacks.reset_table(body) == {QUEUE: 7}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"offsetTable":5}', b'{"offsetTable":{"x":7}}', b'{"offsetTable":[{"offset":7}]}', b"\xff",
     b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:"many"}}'],
)  # fmt: skip
def test_an_invalid_offset_table_is_rejected(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        callbacks.reset_table(body)


def test_status_tables_are_encoded_and_decoded() -> None:
    body = callbacks.status_body({QUEUE: 7})
    assert body == b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":3,"topic":"T1"}:7}}'
    assert callbacks.status_table(body) == {QUEUE: 7}
    assert callbacks.statuses_body({"c1": {QUEUE: 7}}) == (
        b'{"consumerTable":{"c1":{{"brokerName":"broker-a","queueId":3,"topic":"T1"}:7}},"messageQueueTable":{}}'
    )


def test_results_are_written_as_java_writes_them() -> None:
    assert fastjson.write(DirectResult(spent_time_mills=5)) == (
        b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":5}'
    )
    info = fastjson.write(RunningInfo(mq_table={WireQueue.of(QUEUE): ProcessQueueInfo(cached_msg_size_in_mi_b=2)}))
    assert b'"mqTable":{{"brokerName":"broker-a","queueId":3,"topic":"T1"}:{"cachedMsgCount":0,' in info
    assert b'"cachedMsgSizeInMiB":2' in info
