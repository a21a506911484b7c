"""The settings of a broker, group by group. [BrokerConfig, MessageStoreConfig, NettyServerConfig]

Each struct is one group of docs/configuration.md, and its docstring the heading. A group extends the one above it, because the
keys of broker.conf have no hierarchy and a msgspec struct has one base: the last one holds them all. Defaults are those of
4.9.4 unless the description says otherwise.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ariane.model.topic import TRACE_TOPIC
from ariane.settings.connections import ConnectionSettings
from ariane.settings.definitions import (
    ARIANE_ONLY,
    ROCKETMQ_5,
    Bytes,
    Changeable,
    DefaultText,
    Hours,
    Milliseconds,
    Percent,
    Seconds,
)

FILTER_GROUPS_MAX = 10_000  # 4.9.4 stores a bit map of about 4.5 bits a group with each message
_DAY_MS = 24 * 3_600_000
_RESPONSE_MAX = 15 * 1024 * 1024  # a frame holds 16 MiB, and a part of that is the header
_COUNT_MAX = 1_000_000
_INT64_MAX = 2**63 - 1

_SWITCH = Changeable()

_JAVA_NAMES = {"broker_ip1": "brokerIP1", "broker_ip2": "brokerIP2"}


def java_name(name: str) -> str:
    """Return the key of a field: its name in camel case, as Java writes it."""
    first, *rest = name.split("_")
    return _JAVA_NAMES.get(name, first + "".join(part.capitalize() for part in rest))


class IdentitySettings(ConnectionSettings, frozen=True, kw_only=True, rename=java_name):
    """Identity and registration."""

    broker_cluster_name: Annotated[str, Meta(description="Name of the cluster; also the name of a topic.")] = (
        "DefaultCluster"
    )
    broker_name: Annotated[
        str,
        DefaultText("the host name"),
        Meta(description="Name that a master and its slaves share; also the name of a topic."),
    ] = msgspec.field(default_factory=socket.gethostname)
    broker_id: Annotated[
        int, Meta(description="At least 1 for a slave, and different for each slave. A master is 0, whatever is set.")
    ] = 0
    broker_ip1: Annotated[
        str,
        DefaultText("the address of this machine"),
        Meta(description="Address that clients are given."),
    ] = ""
    broker_ip2: Annotated[
        str, DefaultText("brokerIP1"), Meta(description="Address that slaves are given for replication.")
    ] = ""
    listen_port: Annotated[int, Meta(ge=0, le=65_535, description="Port for clients; 0 takes a free one.")] = 10911
    namesrv_addr: Annotated[
        str,
        DefaultText("`$NAMESRV_ADDR`"),
        Meta(description="Name servers, `host:port` separated by `;`. Empty: the broker registers nowhere."),
    ] = msgspec.field(default_factory=lambda: os.environ.get("NAMESRV_ADDR", ""))
    register_name_server_period: Annotated[
        Milliseconds, Meta(description="Interval of registrations; limited to 10,000 to 60,000.")
    ] = 30_000
    register_broker_timeout_mills: Annotated[
        Milliseconds, Changeable(1, 600_000), Meta(description="Timeout of requests to name servers.")
    ] = 6_000
    region_id: Annotated[str, Changeable(), Meta(description="Region in the response to every send.")] = "DefaultRegion"


class TopicSettings(IdentitySettings, frozen=True, kw_only=True, rename=java_name):
    """Topics, groups and traces."""

    auto_create_topic_enable: Annotated[
        bool, _SWITCH, Meta(description="Create a topic when it is first sent to, with the settings of TBW102.")
    ] = True
    default_topic_queue_nums: Annotated[
        int, Changeable(1, 65_536), Meta(description="Queues of TBW102, and so the maximum of an auto-created topic.")
    ] = 8
    auto_create_subscription_group: Annotated[
        bool, _SWITCH, Meta(description="Create a consumer group when it is first used.")
    ] = True
    cluster_topic_enable: Annotated[
        bool, Meta(description="Allow reading and writing the topic that is named like the cluster.")
    ] = True
    broker_topic_enable: Annotated[
        bool, Meta(description="Allow reading and writing the topic that is named like the broker.")
    ] = True
    trace_topic_enable: Annotated[bool, Meta(description="Create the trace topic at the start.")] = False
    msg_trace_topic_name: Annotated[str, Meta(description="Name of the trace topic.")] = TRACE_TOPIC
    trace_on: Annotated[
        bool, _SWITCH, Meta(description="TRACE_ON in the responses to sends; producers trace only while it is true.")
    ] = True
    notify_consumer_ids_changed_enable: Annotated[
        bool, _SWITCH, Meta(description="Notify the members of a group when a member joins or leaves.")
    ] = True


class AccessSettings(TopicSettings, frozen=True, kw_only=True, rename=java_name):
    """Access control."""

    broker_permission: Annotated[
        int,
        Changeable(0, 7),
        Meta(ge=0, le=7, description="4 (read) + 2 (write). A missing bit is missing in every route of this broker."),
    ] = 6
    acl_enable: Annotated[
        bool,
        Meta(description="Serve only requests that are signed by an account of plain_acl.yml and permitted by it."),
    ] = False
    rocketmq_home: Annotated[
        str,
        DefaultText("`$ROCKETMQ_HOME`"),
        Meta(description="Directory of conf/plain_acl.yml; required with aclEnable."),
    ] = msgspec.field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))


class FlowControlSettings(AccessSettings, frozen=True, kw_only=True, rename=java_name):
    """Limits and flow control."""

    server_connections_max: Annotated[
        int, ARIANE_ONLY, Changeable(1, _COUNT_MAX), Meta(ge=1, description="Connections; further ones are closed.")
    ] = 16_384
    server_requests_max: Annotated[
        int,
        ARIANE_ONLY,
        Changeable(1, 100 * _COUNT_MAX),
        Meta(ge=1, description="Requests in flight, held pulls included; further ones get code 2 [OVERLOAD]."),
    ] = 100_000
    connection_requests_max: Annotated[
        int, ARIANE_ONLY, Changeable(1, _COUNT_MAX), Meta(ge=1, description="Requests in flight of one connection.")
    ] = 16_384
    broker_fast_failure_enable: Annotated[
        bool,
        _SWITCH,
        Meta(description="Answer code 2 [TIMEOUT_CLEAN_QUEUE] to requests that waited longer than below."),
    ] = True
    wait_time_mills_in_send_queue: Annotated[
        Milliseconds, Changeable(1, _DAY_MS), Meta(description="Longest wait of a send before it is handled.")
    ] = 200
    wait_time_mills_in_pull_queue: Annotated[
        Milliseconds, Changeable(1, _DAY_MS), Meta(description="Longest wait of a pull before it is handled.")
    ] = 5_000
    wait_time_mills_in_heartbeat_queue: Annotated[
        Milliseconds, Changeable(1, _DAY_MS), Meta(description="Longest wait of a heartbeat before it is handled.")
    ] = 31_000
    wait_time_mills_in_transaction_queue: Annotated[
        Milliseconds, Changeable(1, _DAY_MS), Meta(description="Longest wait of END_TRANSACTION before it is handled.")
    ] = 3_000
    os_page_cache_busy_time_out_mills: Annotated[
        Milliseconds,
        Changeable(1, _DAY_MS),
        Meta(description="If storing a send takes longer, sends get code 2 [REJECTREQUEST] for the time it took."),
    ] = 1_000
    flush_behind_max: Annotated[
        Bytes,
        ARIANE_ONLY,
        Changeable(1, _INT64_MAX),
        Meta(ge=1, description="Unflushed bytes of the commit log above which sends get code 2 [REJECTREQUEST]."),
    ] = 2 * 1024 * 1024 * 1024
    start_accept_send_request_time_stamp: Annotated[
        Milliseconds, Changeable(0, _INT64_MAX), Meta(description="Reject sends before this time since 1970.")
    ] = 0


class MessageSettings(FlowControlSettings, frozen=True, kw_only=True, rename=java_name):
    """Messages, pulls and queries."""

    max_message_size: Annotated[Bytes, Changeable(1, _RESPONSE_MAX), Meta(ge=1, description="Largest body.")] = (
        4 * 1024 * 1024
    )
    long_polling_enable: Annotated[
        bool, _SWITCH, Meta(description="Hold a pull without messages until one arrives or the client's timeout ends.")
    ] = True
    short_polling_time_mills: Annotated[
        Milliseconds, Changeable(0, 120_000), Meta(description="Hold such a pull for this time if long polling is off.")
    ] = 1_000
    store_reply_message_enable: Annotated[
        bool, Meta(description="Store the replies of request-reply in addition to pushing them.")
    ] = True
    max_transfer_bytes_on_message_in_memory: Annotated[
        Bytes, Changeable(1, _RESPONSE_MAX), Meta(description="Maximum of a pull response with recent messages.")
    ] = 262_144
    max_transfer_count_on_message_in_memory: Annotated[
        int, Changeable(1, _COUNT_MAX), Meta(description="Messages of a pull response with recent messages.")
    ] = 32
    max_transfer_bytes_on_message_in_disk: Annotated[
        Bytes, Changeable(1, _RESPONSE_MAX), Meta(description="Maximum of a pull response with old messages.")
    ] = 65_536
    max_transfer_count_on_message_in_disk: Annotated[
        int, Changeable(1, _COUNT_MAX), Meta(description="Messages of a pull response with old messages.")
    ] = 8
    access_message_in_memory_max_ratio: Annotated[
        Percent,
        Changeable(0, 100),
        Meta(
            description="Share of the machine's memory; messages within that distance from the end of the log are recent."
        ),
    ] = 40
    max_msgs_num_batch: Annotated[
        int, Meta(ge=1, le=10_000, description="Messages of a query by key; the response says if there are more.")
    ] = 64
    default_query_max_num: Annotated[int, Meta(ge=1, le=10_000, description="Messages of a query by unique id.")] = 32


class TransactionSettings(MessageSettings, frozen=True, kw_only=True, rename=java_name):
    """Transactions."""

    reject_transaction_message: Annotated[bool, Meta(description="Reject transactional messages.")] = False
    transaction_time_out: Annotated[
        Milliseconds,
        Meta(
            ge=1,
            le=1 << 40,
            description="Age of a half message at the first check of its transaction, unless the message sets another.",
        ),
    ] = 6_000
    transaction_check_max: Annotated[
        int,
        Meta(ge=1, le=1 << 30, description="Checks before a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC."),
    ] = 15
    transaction_check_interval: Annotated[Milliseconds, Meta(ge=1, le=1 << 40, description="Interval of checks.")] = (
        60_000
    )


class DelaySettings(TransactionSettings, frozen=True, kw_only=True, rename=java_name):
    """Delayed messages."""

    message_delay_level: Annotated[
        str, Meta(description="Delay of each level, beginning with level 1: numbers followed by s, m, h or d.")
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    flush_delay_offset_interval: Annotated[Milliseconds, Meta(description="Interval of writing delayOffset.json.")] = (
        10_000
    )
    timer_max_delay_sec: Annotated[
        Seconds,
        ROCKETMQ_5,
        Meta(
            ge=1, le=100 * 365 * 86_400, description="Longest delay of a message with a delivery time; 3 days in 5.x."
        ),
    ] = 365 * 86_400


class FilterSettings(DelaySettings, frozen=True, kw_only=True, rename=java_name):
    """SQL92 filters."""

    enable_property_filter: Annotated[bool, Meta(description="Serve SQL92 subscriptions.")] = False
    filter_support_retry: Annotated[bool, Meta(description="Filter the retried messages of a group, too.")] = False
    filter_data_clean_time_span: Annotated[
        Milliseconds, Meta(ge=0, le=1 << 62, description="Keep the filter of a group without members for this time.")
    ] = 86_400_000
    expect_consumer_num_use_filter: Annotated[
        int,
        Meta(
            ge=1,
            le=FILTER_GROUPS_MAX,
            description="Groups per topic that the bloom filter of consumerFilter.json is sized for. Java brokers use it.",
        ),
    ] = 32
    max_error_rate_of_bloom_filter: Annotated[
        Percent, Meta(ge=1, le=99, description="False positives that the bloom filter is sized for.")
    ] = 20


class StatisticsSettings(FilterSettings, frozen=True, kw_only=True, rename=java_name):
    """Statistics."""

    enable_detail_stat: Annotated[bool, Meta(description="Count by queue, too, and not only by topic and group.")] = (
        True
    )
    auto_delete_unused_stats: Annotated[
        bool,
        Meta(
            description="Remove the statistics of deleted topics and groups immediately; unused statistics are removed after a "
            "day in any case."
        ),
    ] = False
    disk_fall_recorded: Annotated[bool, Meta(description="Record the lag of each group and queue in bytes of log.")] = (
        True
    )
    disable_consume_if_consumer_read_slowly: Annotated[
        bool, Meta(description="Every 3 minutes, disable groups whose lag exceeds consumerFallbehindThreshold.")
    ] = False
    consumer_fallbehind_threshold: Annotated[Bytes, Meta(description="Lag above which a group is disabled.")] = (
        16 * 1024 * 1024 * 1024
    )
    stats_log_dir: Annotated[
        str, ARIANE_ONLY, DefaultText("`logs` in storePathRootDir"), Meta(description="Directory of stats.log.")
    ] = ""


class StorageSettings(StatisticsSettings, frozen=True, kw_only=True, rename=java_name):
    """Storage."""

    store_path_root_dir: Annotated[
        str, DefaultText("`~/store`"), Meta(description="Directory of all stored files.")
    ] = msgspec.field(default_factory=lambda: str(Path.home() / "store"))
    store_path_commit_log: Annotated[
        str,
        DefaultText("`commitlog` in storePathRootDir"),
        Meta(description="Directory of the commit log. Several directories are refused."),
    ] = ""
    mapped_file_size_commit_log: Annotated[
        Bytes, Meta(ge=4096, le=(1 << 31) - 1, description="Size of a commit-log file; fixed once there are files.")
    ] = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: Annotated[
        Bytes, Meta(description="Size of a consume-queue file, rounded up to a multiple of 20.")
    ] = 6_000_000
    check_crc_on_recover: Annotated[
        bool, Meta(description="Verify the checksums of bodies while the log is recovered.")
    ] = msgspec.field(default=True, name="checkCRCOnRecover")
    message_index_enable: Annotated[
        bool, Meta(description="Index unique ids and keys; without the index, queries by key find nothing.")
    ] = True
    max_hash_slot_num: Annotated[
        int,
        Meta(
            description="Slots of an index file, 4 bytes of memory each. Files of other sizes are rebuilt at the start."
        ),
    ] = 5_000_000
    max_index_num: Annotated[
        int, Meta(description="Entries of an index file, plus one; 20 bytes of disk space each.")
    ] = 20_000_000


class FlushSettings(StorageSettings, frozen=True, kw_only=True, rename=java_name):
    """Flushing."""

    flush_disk_type: Annotated[
        Literal["ASYNC_FLUSH", "SYNC_FLUSH"],
        Meta(description="When a send is answered: after the write (ASYNC_FLUSH) or after the fsync (SYNC_FLUSH)."),
    ] = "ASYNC_FLUSH"
    flush_interval_commit_log: Annotated[Milliseconds, Meta(description="Interval of asynchronous flushes.")] = 500
    sync_flush_timeout: Annotated[
        Milliseconds, Meta(description="Wait for the flush of a send before it is answered FLUSH_DISK_TIMEOUT.")
    ] = 5_000
    flush_interval_consume_queue: Annotated[
        Milliseconds,
        Meta(description="Interval of flushes of consume queues; longer if they take more than a fifth of the time."),
    ] = 1_000
    flush_consumer_offset_interval: Annotated[
        Milliseconds, Meta(description="Interval of writing consumerOffset.json.")
    ] = 5_000


class RetentionSettings(FlushSettings, frozen=True, kw_only=True, rename=java_name):
    """Retention."""

    file_reserved_time: Annotated[
        Hours, Meta(ge=0, le=1 << 30, description="Keep a commit-log file for this time after its last write.")
    ] = 72
    delete_when: Annotated[
        str, Meta(description="Local hours, 00 to 23, in which expired files are removed; separated by `;`.")
    ] = "04"
    disk_max_used_space_ratio: Annotated[
        Percent, Meta(description="Disk usage above which expired files are removed at any hour; limited to 10 to 95.")
    ] = 75
    clean_file_forcibly_enable: Annotated[
        bool, Meta(description="Above diskSpaceCleanForciblyRatio, remove the oldest files before they expire.")
    ] = True
    disk_space_clean_forcibly_ratio: Annotated[
        Percent,
        ROCKETMQ_5,
        Meta(ge=1, le=100, description="Disk usage for cleanFileForciblyEnable; a property of the JVM in 4.9.4."),
    ] = 85
    disk_space_warning_level_ratio: Annotated[
        Percent,
        ROCKETMQ_5,
        Meta(ge=1, le=100, description="Disk usage above which messages are refused; a property of the JVM in 4.9.4."),
    ] = 90
    clean_resource_interval: Annotated[
        Milliseconds, Meta(ge=100, le=1 << 30, description="Interval of checks for files to remove.")
    ] = 10_000
    delete_commit_log_files_interval: Annotated[
        Milliseconds, Meta(ge=0, le=1 << 30, description="Pause between two removed commit-log files.")
    ] = 100
    delete_consume_queue_files_interval: Annotated[
        Milliseconds, Meta(ge=0, le=1 << 30, description="Pause between rounds of removed consume-queue files.")
    ] = 100


class ReplicationSettings(RetentionSettings, frozen=True, kw_only=True, rename=java_name):
    """Replication."""

    broker_role: Annotated[
        Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"],
        Meta(description="SYNC_MASTER answers a send when a slave has it; SLAVE follows the master of its brokerName."),
    ] = "ASYNC_MASTER"
    ha_master_address: Annotated[
        str,
        DefaultText("from the name server"),
        Meta(description="Replication address of a slave's master, `host:port`."),
    ] = ""
    ha_send_heartbeat_interval: Annotated[
        Milliseconds, Meta(ge=10, le=3_600_000, description="Idle time after which either side sends a heartbeat.")
    ] = 5_000
    ha_housekeeping_interval: Annotated[
        Milliseconds, Meta(ge=10, le=3_600_000, description="Silence after which either side closes the connection.")
    ] = 20_000
    ha_transfer_batch_size: Annotated[
        Bytes,
        Meta(
            ge=1, le=4_000_000, description="Largest part of the log in one frame."
        ),  # a Java slave's buffer has 4 MiB
    ] = 32_768
    ha_slave_fallbehind_max: Annotated[
        Bytes,
        Meta(ge=1, le=1 << 62, description="Lag of the best slave above which a SYNC_MASTER does not wait for it."),
    ] = 268_435_456
    slave_timeout: Annotated[
        Milliseconds,
        Meta(ge=0, le=3_600_000, description="Wait for a slave before a send is answered FLUSH_SLAVE_TIMEOUT."),
    ] = 3_000
    slave_read_enable: Annotated[bool, Meta(description="Send consumers of old messages to a slave.")] = False
    offset_check_in_slave: Annotated[bool, Meta(description="Correct invalid pull offsets on a slave, too.")] = False
