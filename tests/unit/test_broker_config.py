"""broker.conf in the format of RocketMQ."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from ariane.broker.config import broker_config as configs
from ariane.broker.config.config_keys import UNSUPPORTED, WITHOUT_EFFECT
from ariane.errors import ConfigError
from ariane.store.message_store import RecordDraft, StoreConfig, open_store
from ariane.testing.disk import FakeDisk

SAMPLE = """\
# the sample that 4.9.4 ships
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
brokerIP1=10.1.2.3
sendMessageThreadPoolNums=4
checkCRCOnRecover=false
"""


def test_the_sample_file_of_java_is_read_and_keys_without_effect_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(SAMPLE)
    config, remarks = configs.BROKER_SETTINGS.load(path)
    assert (config.broker_name, config.broker_ip1, config.sync_flush) == ("broker-a", "10.1.2.3", True)
    assert config.check_crc_on_recover is False
    assert [remark.split()[0] for remark in remarks] == ["sendMessageThreadPoolNums"]
    assert config.delete_hours == {4}


def test_settings_round_trip_through_their_texts() -> None:
    config, _ = configs.BROKER_SETTINGS.parse(
        {"brokerName": "b", "listenPort": "0", "brokerIP2": "10.0.0.1", "traceOn": "FALSE"}
    )
    repeated, remarks = configs.BROKER_SETTINGS.parse(configs.BROKER_SETTINGS.texts(config))
    assert (repeated, remarks) == (config, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "many"),
        ("listenPort", "70000"),
        ("flushDiskType", "SOMETIMES"),
        ("brokerRole", "MASTER"),
        ("brokerName", "a/b"),
        ("brokerPermission", "9"),
        ("deleteWhen", "4am"),
        ("deleteWhen", "04;24"),
        ("fileReservedTime", "-1"),
        ("cleanResourceInterval", "0"),
        ("diskSpaceWarningLevelRatio", "0"),
        ("serverConnectionsMax", "0"),
        ("flushBehindMax", "0"),
        ("msgTraceTopicName", "a/b"),
    ],
)
def test_an_invalid_value_is_rejected_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.BROKER_SETTINGS.parse({"brokerName": "b", key: value})
    assert key in str(caught.value)


def test_a_slave_needs_a_positive_broker_id_and_a_master_is_0() -> None:
    with pytest.raises(ConfigError, match="brokerId"):
        configs.BROKER_SETTINGS.parse({"brokerName": "b", "brokerRole": "SLAVE"})
    slave, _ = configs.BROKER_SETTINGS.parse({"brokerName": "b", "brokerRole": "SLAVE", "brokerId": "1"})
    assert slave.is_slave and slave.broker_id == 1
    master, _ = configs.BROKER_SETTINGS.parse({"brokerName": "b", "brokerRole": "SYNC_MASTER", "brokerId": "3"})
    assert master.broker_id == 0
    with pytest.raises(ConfigError, match="haMasterAddress"):
        configs.BROKER_SETTINGS.parse({"brokerName": "b", "haMasterAddress": "somewhere"})


def test_access_control_requires_rocketmq_home() -> None:
    with pytest.raises(ConfigError, match="rocketmqHome"):
        configs.BROKER_SETTINGS.parse({"brokerName": "b", "aclEnable": "true", "rocketmqHome": ""})
    assert configs.BROKER_SETTINGS.parse({"brokerName": "b", "aclEnable": "true", "rocketmqHome": "/rocketmq"})[
        0
    ].acl_enable


def test_a_missing_file_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.conf"):
        configs.BROKER_SETTINGS.load(tmp_path / "none.conf")


def test_no_setting_is_listed_as_without_effect_or_unsupported() -> None:
    assert not set(configs.BROKER_SETTINGS.texts(configs.BrokerConfig())) & (set(WITHOUT_EFFECT) | set(UNSUPPORTED))


def test_the_store_may_open_half_of_the_process_limit(monkeypatch):
    for soft, expected in (
        (1024, 512),
        (20_000, 10_000),
        (10**9, configs.STORE_FILES_MAX),
        (resource.RLIM_INFINITY, configs.STORE_FILES_MAX),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda which, soft=soft: (soft, soft))
        assert configs.to_store_config(configs.BrokerConfig(store_path_root_dir="/s")).open_files_max == expected


def test_alternating_writes_to_queues_keep_their_files_open():
    def opened(files_max: int) -> int:
        disk = FakeDisk()
        disk_open = disk.open
        opens: list[str] = []
        config = StoreConfig(root="/s", commit_log_size=1 << 20, open_files_max=files_max)
        store = open_store(config, disk, now_ms=lambda: 1, store_host=bytes(8))
        for turn in range(3):
            if turn == 1:
                disk.open = lambda path: opens.append(path) or disk_open(path)
            for queue in range(8):
                store.put(RecordDraft(topic="T", queue_id=queue, body=b"x", born_ms=1, born_host=bytes(8)))
                store.dispatch_pending()
        store.close()
        return sum("consumequeue" in path for path in opens)

    assert opened(64) < opened(4)
