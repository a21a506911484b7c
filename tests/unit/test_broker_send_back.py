"""Messages sent back: the next attempt, its delay and its origin. No socket, no disk."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig
from ariane.broker.handlers.sending.send_back import SendBackHandler
from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ReplyError
from ariane.model import host, ids
from ariane.model.topic import TopicConfig
from ariane.net.connection import Reply
from ariane.net.replies import make_peer
from ariane.protocol.codes import VERSION, RequestCode, ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.records import properties, record
from ariane.protocol.requests import encode_header
from ariane.protocol.requests.admin import SubscriptionGroupTable
from ariane.protocol.requests.messaging import ConsumerSendMsgBack
from ariane.protocol.requests.routing import TopicTable
from ariane.store.message_store import AppendResult, RecordDraft

CONFIG = BrokerConfig(broker_name="broker-a")
HERE = host.pack("127.0.0.1", 10911)
BORN = host.pack("10.0.0.1", 5)


class SendBackRig:
    """A handler over one stored message; collects the drafts that it stores."""

    def __init__(self, *, times: int = 0, **own: str) -> None:
        self.topics = TopicRegistry(TopicTable(), CONFIG, now_ms=lambda: 1)
        self.drafts: list[RecordDraft] = []
        stored = record.encode(
            b"T", b"body", properties.encode(own).encode(), queue_id=2, queue_offset=9, offset=77, born_ms=12,
            born_host=BORN, store_ms=34, store_host=HERE, flag=7, sys_flag=1, reconsume_times=times,
        )  # fmt: skip
        groups = GroupRegistry(SubscriptionGroupTable(), auto_create=True, now_ms=lambda: 1)
        store = SimpleNamespace(read_record=lambda offset: stored if offset == 77 else None)
        self.settings = DynamicConfig(CONFIG, 0)
        self.handler = SendBackHandler(
            settings=self.settings,
            topics=self.topics,
            groups=groups,
            store=store,  # type: ignore[arg-type]
            returned=self,
            durability=SimpleNamespace(wait_flushed=lambda end_offset: None),
        )

    def on_stored(self) -> None:
        pass

    def store_returned(self, draft: RecordDraft) -> AppendResult:
        self.drafts.append(draft)
        return AppendResult(0, 1, 0, 0)

    def back(self, level: int = 0, most: int | None = 16, version: int = VERSION) -> tuple[RecordDraft, dict[str, str]]:
        header = encode_header(ConsumerSendMsgBack(77, "G", level, None, None, False, most))
        command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, version=version, fields=header)
        assert self.handler.send_back(command, make_peer(1, ("127.0.0.1", 1))) == Reply()
        (draft,) = self.drafts
        return draft, properties.decode(draft.properties)


def test_a_retried_message_is_equal_and_carries_its_original_id() -> None:
    draft, own = SendBackRig(KEYS="k", TAGS="a", UNIQ_KEY="U", mine="1").back()
    assert (draft.topic, draft.queue_id, draft.reconsume_times, draft.tags) == ("%RETRY%G", 0, 1, "a")
    assert (draft.body, draft.flag, draft.sys_flag, draft.born_ms, draft.born_host) == (b"body", 7, 1, 12, BORN)
    first = ids.offset_message_id(HERE, 77)
    assert own == {
        "KEYS": "k", "TAGS": "a", "UNIQ_KEY": "U", "mine": "1", "WAIT": "false", "DELAY": "3", "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": first,
    }  # fmt: skip


def test_later_attempts_retain_the_original_id_and_topic() -> None:
    _, own = SendBackRig(times=4, RETRY_TOPIC="First", ORIGIN_MESSAGE_ID="ID", DELAY="6").back()
    assert (own["RETRY_TOPIC"], own["ORIGIN_MESSAGE_ID"], own["DELAY"]) == ("First", "ID", "7")


def test_the_listener_may_choose_the_delay_level() -> None:
    assert SendBackRig(times=4).back(level=2)[1]["DELAY"] == "2"


@pytest.mark.parametrize(
    ("times", "level", "most", "version", "topic"),
    [
        (15, 0, 16, VERSION, "%RETRY%G"),
        (16, 0, 16, VERSION, "%DLQ%G"),
        (0, -1, 16, VERSION, "%DLQ%G"),
        (2, 0, 2, VERSION, "%DLQ%G"),
        (2, 0, 2, 120, "%RETRY%G"),  # so old a client has no say: the group's 16 counts
        (16, 0, None, VERSION, "%DLQ%G"),
    ],
)
def test_a_message_becomes_a_dead_letter_by_attempts_or_level(
    times: int, level: int, most: int | None, version: int, topic: str
) -> None:
    draft, own = SendBackRig(times=times).back(level, most, version)
    assert draft.topic == topic
    assert (own["DELAY"] == "0") is (topic == "%DLQ%G")


def test_a_retry_topic_without_write_permission_rejects_the_send_back() -> None:
    stage = SendBackRig()
    stage.topics.put(TopicConfig(topic_name="%RETRY%G", perm=4))
    with pytest.raises(ReplyError) as refused:
        stage.back()
    assert refused.value.code == ResponseCode.NO_PERMISSION


def test_a_permission_revoked_at_run_time_takes_effect() -> None:
    stage = SendBackRig()
    stage.settings.apply(msgspec.structs.replace(CONFIG, broker_permission=4), 1)
    with pytest.raises(ReplyError) as refused:
        stage.back()
    assert refused.value.code == ResponseCode.NO_PERMISSION
