"""Changes of a running broker's configuration, and of its file."""

from __future__ import annotations

import pytest

from ariane.broker.config.broker_config import BROKER_SETTINGS, BrokerConfig
from ariane.broker.config.dynamic_config import DynamicConfig, update_file
from ariane.errors import ConfigError
from ariane.model.topic import DataVersion
from ariane.protocol import java_properties
from ariane.store.disk.files import read_whole
from ariane.testing.disk import FakeDisk

CONFIG = BrokerConfig(broker_name="broker-a").validate()

FILE = """\
# the broker of the first rack
brokerName=broker-a

traceOn = \\
    true
! ports
listenPort: 10911
brokerPermission=4
brokerPermission=6"""


def test_changes_are_applied_and_increment_the_version() -> None:
    settings = DynamicConfig(CONFIG, 5)
    after, changes = BROKER_SETTINGS.change(
        CONFIG, {"brokerPermission": " 4", "traceOn": "false", "longPollingEnable": "true"}
    )
    assert changes == {"brokerPermission": "4", "traceOn": "false"}
    settings.apply(after, 9)
    assert (settings.current.broker_permission, settings.current.trace_on, settings.version) == (
        4,
        False,
        DataVersion(1, 9),
    )


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("listenPort", "1", "edit broker.conf and restart"),
        ("storePathRootDir", "/etc", "edit broker.conf and restart"),
        ("brokerName", "other", "edit broker.conf and restart"),
        ("sendMessageThreadPoolNums", "4", "no effect"),
        ("traceOff", "true", "Did you mean .traceOn."),
        ("brokerPermission", "9", "expected 0 to 7"),
        ("brokerPermission", "rw", "whole number"),
        ("traceOn", "ture", "true or false"),
        ("regionId", "a\nlistenPort=1", "printable"),
        ("maxMessageSize", "999999999", "expected 1 to"),
    ],
)
def test_one_key_that_cannot_change_rejects_all_changes(key: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        BROKER_SETTINGS.change(CONFIG, {"autoCreateTopicEnable": "false", key: text})
    assert caught.value.key == key


def test_a_key_with_its_current_value_is_not_a_change() -> None:
    assert BROKER_SETTINGS.change(CONFIG, BROKER_SETTINGS.texts(CONFIG)) == (CONFIG, {})


# The allow-list of changes by requests, in full: a marker on one more field has to be a decision.
CHANGEABLE = """
    accountGroupsPerHour accountQueuesPerHour accountSubscriptionsMax accountTopicsPerHour addressGroupsPerHour
    addressQueuesPerHour addressSubscriptionsMax addressTopicsPerHour serverGroupsMax serverQueuesMax
    serverSubscriptionsMax serverTopicsMax
    accountBytesInPerSecond accountBytesOutPerSecond accountConnectionsMax accountRequestsPerSecond accountUnfinishedMax
    accountUnreadMax addressBytesInPerSecond addressBytesOutPerSecond addressConnectionsMax addressRequestsPerSecond
    addressUnfinishedMax addressUnreadMax serverBytesInPerSecond serverBytesOutPerSecond serverRequestsPerSecond
    accessMessageInMemoryMaxRatio autoCreateSubscriptionGroup autoCreateTopicEnable brokerFastFailureEnable brokerPermission
    connectionRequestsMax connectionUnreadMax defaultTopicQueueNums flushBehindMax grpcTraceEnable longPollingEnable maxMessageSize
    maxRequestHeaderSize maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory notifyConsumerIdsChangedEnable osPageCacheBusyTimeOutMills regionId remotingTraceTopics
    registerBrokerTimeoutMills serverConnectionsMax serverRequestsMax serverUnfinishedMax serverUnreadMax
    shortPollingTimeMills startAcceptSendRequestTimeStamp traceOn unreadTimeoutSeconds waitTimeMillsInHeartbeatQueue
    waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
"""


def test_requests_change_exactly_the_listed_settings() -> None:
    assert BROKER_SETTINGS.changeable == set(CHANGEABLE.split())


@pytest.mark.parametrize("key", sorted(BROKER_SETTINGS.changeable))
def test_a_file_accepts_every_value_that_a_request_may_set(key: str) -> None:
    setting = BROKER_SETTINGS.settings[key]
    assert setting.changeable is not None
    for value in (setting.changeable.ge, setting.changeable.le):
        if value is not None:
            setting.check(value)


def test_an_updated_file_retains_comments_and_line_order() -> None:
    disk = FakeDisk()
    disk.make_dirs("/conf")
    disk.close(disk.create("/conf/broker.conf", 0))
    disk.pwrite(disk.open("/conf/broker.conf"), FILE.encode(), 0)
    update_file(disk, "/conf/broker.conf", {"traceOn": "false", "brokerPermission": "2", "regionId": "a\\b"})
    text = (read_whole(disk, "/conf/broker.conf") or b"").decode()
    assert text == (
        "# the broker of the first rack\nbrokerName=broker-a\n\ntraceOn=false\n! ports\nlistenPort: 10911\n"
        "brokerPermission=4\nbrokerPermission=2\nregionId=a\\\\b\n"
    )
    assert java_properties.parse(text)["regionId"] == "a\\b"
    assert read_whole(disk, "/conf/broker.conf.bak") == FILE.encode()


def test_a_removed_file_is_not_created_again() -> None:
    with pytest.raises(FileNotFoundError, match="was removed"):
        update_file(FakeDisk(), "/conf/broker.conf", {"traceOn": "false"})


@pytest.mark.parametrize("value", ["a b", " a", "a\\", "a\nb=c", "tab\there", "\r", "#x", "a=b:c", ""])
def test_an_edited_value_is_read_back_unchanged(value: str) -> None:
    text = java_properties.edit("x=1\r\ny=2", {"y": value, "z": value})
    assert java_properties.parse(text) == {"x": "1", "y": value, "z": value}
    assert text.startswith("x=1\r\n")
