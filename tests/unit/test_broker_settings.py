"""Settings that a request may change, and what becomes of the file."""

from __future__ import annotations

import pytest

from ariane.broker.config import BrokerConfig, texts
from ariane.broker.dynamic_config import CHANGEABLE, DynamicConfig, changed, update_file
from ariane.errors import ConfigError
from ariane.model.topic import DataVersion
from ariane.protocol import java_properties
from ariane.store.files import read_whole
from ariane.testing.disk import FakeDisk

CONFIG = BrokerConfig(broker_name="broker-a")

FILE = """\
# the broker of the first rack
brokerName=broker-a

traceOn = \\
    true
! ports
listenPort: 10911
brokerPermission=4
brokerPermission=6"""


def test_what_is_wanted_is_taken_and_the_version_counts() -> None:
    settings = DynamicConfig(CONFIG, 5)
    after, changes = changed(CONFIG, {"brokerPermission": " 4", "traceOn": "false", "longPollingEnable": "true"})
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
        ("listenPort", "1", "start the broker again"),
        ("storePathRootDir", "/etc", "start the broker again"),
        ("brokerName", "other", "start the broker again"),
        ("sendMessageThreadPoolNums", "4", "no effect"),
        ("traceOff", "true", "Did you mean .traceOn."),
        ("brokerPermission", "9", "use 0 to 7"),
        ("brokerPermission", "rw", "whole number"),
        ("traceOn", "ture", "true or false"),
        ("regionId", "a\nlistenPort=1", "printable"),
        ("maxMessageSize", "999999999", "use 1 to"),
    ],
)
def test_one_key_that_cannot_be_changed_refuses_all(key: str, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        changed(CONFIG, {"autoCreateTopicEnable": "false", key: text})
    assert caught.value.key == key


def test_a_key_that_is_given_the_value_it_has_is_no_change() -> None:
    assert changed(CONFIG, texts(CONFIG)) == (CONFIG, {})


def test_every_changeable_key_is_a_key() -> None:
    assert CHANGEABLE.keys() <= texts(CONFIG).keys()


def test_the_file_keeps_its_comments_and_the_order_of_its_lines() -> None:
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


def test_a_file_that_is_gone_is_not_made_anew() -> None:
    with pytest.raises(FileNotFoundError, match="is gone"):
        update_file(FakeDisk(), "/conf/broker.conf", {"traceOn": "false"})


@pytest.mark.parametrize("value", ["a b", " a", "a\\", "a\nb=c", "tab\there", "\r", "#x", "a=b:c", ""])
def test_an_edited_value_is_read_back_as_it_was(value: str) -> None:
    text = java_properties.edited("x=1\r\ny=2", {"y": value, "z": value})
    assert java_properties.parse(text) == {"x": "1", "y": value, "z": value}
    assert text.startswith("x=1\r\n")
