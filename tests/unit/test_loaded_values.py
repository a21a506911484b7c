"""Documents of config/ whose content breaks the rules for requests: invalid entries are dropped, reported and retained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ariane.broker.config.broker_config import BrokerConfig
from ariane.broker.lifecycle.persistent_state import load_delay_offsets
from ariane.broker.state.consumer_filters import FilterTable
from ariane.broker.state.loading import loaded_values
from ariane.broker.state.loading.saved_state import SavedState
from ariane.broker.state.saved import json_documents
from ariane.store.disk.files import read_whole
from ariane.testing.disk import FakeDisk

CONFIG = BrokerConfig(store_path_root_dir="/store")
INT64 = 2**63 - 1


def disk_with(name: str, document: dict[str, Any]) -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs(CONFIG.config_dir)
    write(disk, name, document)
    return disk


def write(disk: FakeDisk, name: str, document: dict[str, Any]) -> None:
    path, data = f"{CONFIG.config_dir}/{name}", json.dumps(document).encode()
    if disk.size(path) is not None:
        disk.remove(path)
    handle = disk.create(path, 0)
    disk.pwrite(handle, data, 0)
    disk.close(handle)


def loaded(disk: FakeDisk) -> SavedState:
    state = SavedState(disk, CONFIG.config_dir)
    state.load()
    return state


def retained(disk: FakeDisk, name: str) -> list[str]:
    return [file for file in disk.listdir(CONFIG.config_dir) if file.startswith(f"{name}.invalid-")]


def test_offsets_that_no_request_may_commit_are_not_loaded(caplog: pytest.LogCaptureFixture) -> None:
    """-5 and 99999999999999999999 were loaded and served."""
    document = {
        "offsetTable": {
            "T@G": {0: 7, 1: -5, 2: 99999999999999999999, 3: INT64, 70000: 1, -1: 1},
            "%RETRY%G@G": {0: 3},
            "T@G/../H": {0: 1},
            "no group": {0: 1},
            "T\x01@G": {0: 1},
        }
    }
    disk = disk_with(json_documents.OFFSETS, document)
    state = loaded(disk)
    assert state.offsets.offset_table == {"T@G": {0: 7, 3: INT64}, "%RETRY%G@G": {0: 3}}
    assert (state.dropped, state.unsaved) == (7, {json_documents.OFFSETS})
    (line,) = caplog.records
    assert line.levelname == "ERROR" and line.getMessage().startswith(
        "Dropped 7 invalid entries of /store/config/consumerOffset.json"
    )
    (copy,) = retained(disk, json_documents.OFFSETS)
    assert json.loads(read_whole(disk, f"{CONFIG.config_dir}/{copy}") or b"") == json.loads(json.dumps(document))


TOPIC = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
GROUP = {"groupName": "G", "retryQueueNums": 1}
DELETION = {"below": 5, "storeMs": 5}


@pytest.mark.parametrize(
    ("name", "member", "valid", "invalid"),
    [
        (json_documents.TOPICS, "topicConfigTable", {"T": TOPIC}, {"a/b": TOPIC, "..": TOPIC, "U": {**TOPIC, "perm": 99}}),
        (json_documents.TOPICS, "topicConfigTable", {"host.name": TOPIC}, {"U": {**TOPIC, "readQueueNums": 10**30}}),
        (json_documents.GROUPS, "subscriptionGroupTable", {"G": GROUP}, {"a@b": GROUP, "H": {**GROUP, "retryQueueNums": -9}}),
        (json_documents.DELETED, "deletedTopics", {"T": DELETION}, {"U": {**DELETION, "below": -1}, "": DELETION}),
    ],
)  # fmt: skip
def test_each_document_is_checked(name: str, member: str, valid: dict[str, Any], invalid: dict[str, Any]) -> None:
    disk = disk_with(name, {member: {**valid, **invalid}})
    state = loaded(disk)
    tables: dict[str, dict[str, Any]] = {
        "topicConfigTable": state.topics.topic_config_table,
        "subscriptionGroupTable": state.groups.subscription_group_table,
        "deletedTopics": state.deletions.to_table(),
    }
    assert tables[member].keys() == valid.keys()
    assert state.dropped == len(invalid)


def test_a_group_whose_retry_policy_no_client_can_follow_is_served_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such a policy refused the start."""
    usable = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1, "max": 9, "multiplier": 2}}
    groups = {
        name: {"groupName": name, "retryMaxTimes": 3, "groupRetryPolicy": policy}
        for name, policy in (("G", usable), ("H", {"type": "LINEAR"}), ("I", {"customizedRetryPolicy": {"next": []}}))
    }
    state = loaded(disk_with(json_documents.GROUPS, {"subscriptionGroupTable": groups}))
    table = state.groups.subscription_group_table
    assert [bool(table[name].group_retry_policy) for name in "GHI"] == [True, False, False]
    assert ({group.retry_max_times for group in table.values()}, state.dropped) == ({3}, 2)
    assert "groupRetryPolicy of 'H': Invalid type 'LINEAR'" in caplog.text


def test_locks_filters_and_delay_offsets_are_checked() -> None:
    queues = [{"brokerName": "b", "queueId": queue_id, "topic": "T"} for queue_id in (0, 1)]
    disk = disk_with(json_documents.LOCKS, {"lockTable": {"G": {"c": queues, "d": [{**queues[0], "queueId": -1}]}}})
    write(disk, json_documents.DELAY_OFFSETS, {"offsetTable": {1: 5, 2: -5, 3: 10**20}})
    data = {"consumerGroup": "G", "topic": "T", "expression": "a > 1"}
    filters = {"T": {"topic": "T", "groupFilterData": {"G": data, "H": {**data, "consumerGroup": "a@b"}}}}
    write(disk, json_documents.FILTERS, {"filterDataByTopic": filters})
    state = loaded(disk)
    assert (len(state.locks["G"]), set(state.locks["G"].values()), state.dropped) == (2, {"c"}, 1)
    assert load_delay_offsets(disk, CONFIG) == {1: 5}
    read = loaded_values.read(disk, CONFIG.config_dir, json_documents.FILTERS, FilterTable)
    assert (list(read.document.filter_data_by_topic["T"].group_filter_data), read.dropped) == (["G"], 1)


def test_a_valid_document_is_loaded_without_a_copy(caplog: pytest.LogCaptureFixture) -> None:
    disk = disk_with(json_documents.OFFSETS, {"offsetTable": {"T@G": {0: 7}}})
    assert (loaded(disk).dropped, retained(disk, json_documents.OFFSETS), caplog.records) == (0, [], [])


def test_few_files_with_invalid_entries_are_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = disk_with(json_documents.OFFSETS, {"offsetTable": {"T@G": {0: -5}}})
    for second in range(8):
        monkeypatch.setattr(disk, "modified_ms", lambda path, second=second: second * 1000)
        loaded(disk)
    names = [f"{json_documents.OFFSETS}.invalid-19700101T00000{second}" for second in range(3, 8)]
    assert retained(disk, json_documents.OFFSETS) == names
