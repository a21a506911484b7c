"""The broker's settings: broker.conf of RocketMQ, read as it is. [BrokerConfig, MessageStoreConfig, NettyServerConfig]

Every member is the key of the same name in camelCase. The other keys of 4.9.4 are in `config_keys`: those without effect are
reported when a file is read, those that this broker does not support stop the start.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ariane.broker.config_keys import ADDRESS_SERVER_KEY, ADDRESS_SERVER_UNUSED, UNSUPPORTED, WITHOUT_EFFECT
from ariane.errors import ConfigError, ProtocolError
from ariane.model import host
from ariane.model.topic import TRACE_TOPIC, topic_name_fault
from ariane.net.flow_limits import CONNECTION_UNREAD_MAX, UNFINISHED_MAX, UNREAD_MAX
from ariane.protocol import java_properties
from ariane.protocol.command import HEADER_MAX
from ariane.protocol.setting_keys import check_keys
from ariane.store.message_store import StoreConfig

STORE_FILES_MAX = 65_536  # a queue that is written to has one open; Java keeps all of all queues open
DELAY_LEVELS_MAX = 64  # each level is a queue that is looked at before each delivery
FILTER_GROUPS_MAX = 10_000  # 4.9.4 keeps a bit map of about 4.5 bits a group for each message

FLUSH_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")
ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
RENAMED = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return RENAMED.get(name, first + "".join(part.capitalize() for part in rest))


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, rename=_camel):
    """Defaults are those of 4.9.4 unless the sentence says otherwise."""

    # identity and network
    broker_cluster_name: str = "DefaultCluster"
    """Name of the cluster; also a topic."""
    broker_name: str = msgspec.field(default_factory=socket.gethostname)
    """Name shared by a master and its slaves; also a topic."""
    broker_id: int = 0
    """0 for a master, which takes it whatever is written; a slave needs one above 0."""
    broker_ip1: str = ""
    """The address that clients are told; empty: the one this machine uses towards others."""
    broker_ip2: str = ""
    """The address that slaves are told; empty: as brokerIP1."""
    bind_address: str = "0.0.0.0"  # noqa: S104 - servers of a cluster serve their network
    """Where to listen; a key of 5.x."""
    listen_port: int = 10911
    """Where clients connect; 0 takes a free port."""
    namesrv_addr: str = msgspec.field(default_factory=lambda: os.environ.get("NAMESRV_ADDR", ""))
    """Name servers, `host:port` joined by `;`; empty: registers nowhere."""
    register_name_server_period: int = 30_000
    """ms between registrations, held within 10,000 and 60,000."""
    register_broker_timeout_mills: int = 6_000
    """ms to wait for a name server."""
    region_id: str = "DefaultRegion"
    """Told in every answer to a send."""
    server_channel_max_idle_time_seconds: int = 120
    """s of silence after which a connection is closed."""

    # topics, groups, permissions
    auto_create_topic_enable: bool = True
    """Create a topic at the first send to it, after the model of TBW102."""
    default_topic_queue_nums: int = 8
    """Queues of TBW102, and so the most that an auto-created topic gets."""
    auto_create_subscription_group: bool = True
    """Create a consumer group at its first use."""
    cluster_topic_enable: bool = True
    """Whether the topic named like the cluster may be read and written."""
    broker_topic_enable: bool = True
    """Whether the topic named like the broker may be read and written."""
    broker_permission: int = 6
    """4 read + 2 write; what is missing here is missing in every route of this broker."""
    acl_enable: bool = False
    """Serve only requests that an account of rocketmqHome/conf/plain_acl.yml signed and may make."""
    rocketmq_home: str = msgspec.field(default_factory=lambda: os.environ.get("ROCKETMQ_HOME", ""))
    """Directory of conf/plain_acl.yml; needed with aclEnable only."""
    trace_topic_enable: bool = False
    """Create the trace topic at start."""
    msg_trace_topic_name: str = TRACE_TOPIC
    """Its name."""
    trace_on: bool = True
    """TRACE_ON of the answers to sends: producers trace only while it is true."""
    notify_consumer_ids_changed_enable: bool = True
    """Tell the members of a group when one comes or goes."""

    # pulls and sends
    long_polling_enable: bool = True
    """Hold a pull that found nothing until a message comes or the client's patience ends."""
    short_polling_time_mills: int = 1_000
    """ms to hold it when long polling is off."""
    store_reply_message_enable: bool = True
    """Store the replies of request-reply besides pushing them."""
    start_accept_send_request_time_stamp: int = 0
    """Sends before this time (ms) are refused."""
    flush_consumer_offset_interval: int = 5_000
    """ms between saves of consumerOffset.json."""

    # limits and flow control
    server_connections_max: int = 16_384
    """Connections at once; the next ones are closed as they come. A key of this broker."""
    server_requests_max: int = 100_000
    """Requests under way at once, held pulls included; beyond, answer 2 [OVERLOAD]. A key of this broker."""
    connection_requests_max: int = 16_384
    """The same for one connection. A key of this broker."""
    max_request_header_size: int = HEADER_MAX
    """Bytes of a request's header; a larger one is answered with an error. A key of this broker."""
    connection_unread_max: int = CONNECTION_UNREAD_MAX
    """Bytes of answers that a client has not read; its further requests are served when it has. A key of this broker."""
    server_unread_max: int = UNREAD_MAX
    """The same for all clients together: beyond, a client is served when it has read everything; beyond twice this, the
    client with most of them is disconnected. A key of this broker."""
    server_unfinished_max: int = UNFINISHED_MAX
    """Bytes of frames that have come in part, of all clients together; beyond, the client whose frame is the oldest is
    disconnected. A key of this broker."""
    unread_timeout_seconds: int = 60
    """s after which a client that reads nothing of its answers is disconnected. A key of this broker."""
    broker_fast_failure_enable: bool = True
    """Answer 2 [TIMEOUT_CLEAN_QUEUE] to a request that has waited too long for its turn."""
    wait_time_mills_in_send_queue: int = 200
    """ms that a send may wait for its turn."""
    wait_time_mills_in_pull_queue: int = 5_000
    """The same for a pull."""
    wait_time_mills_in_heartbeat_queue: int = 31_000
    """The same for a heartbeat."""
    wait_time_mills_in_transaction_queue: int = 3_000
    """The same for the end of a transaction."""
    os_page_cache_busy_time_out_mills: int = 1_000
    """ms that storing one send may take; after a longer one sends are answered 2 [REJECTREQUEST] for as long as it took."""
    flush_behind_max: int = 2 * 1024 * 1024 * 1024
    """Bytes of the log that may wait to be flushed; beyond, sends are answered 2 [REJECTREQUEST]. A key of this broker."""

    # transactions
    reject_transaction_message: bool = False
    """Refuse transactional messages."""
    transaction_time_out: int = 6_000
    """ms that a half message is left alone before its producer is asked, unless it names a time of its own."""
    transaction_check_max: int = 15
    """Times that a producer is asked about a half message before it is put aside in TRANS_CHECK_MAX_TIME_TOPIC."""
    transaction_check_interval: int = 60_000
    """ms between two rounds of asking."""

    # delays
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delay of each level, the first is level 1; units s m h d."""
    flush_delay_offset_interval: int = 10_000
    """ms between saves of delayOffset.json."""
    timer_max_delay_sec: int = 365 * 86_400
    """s that a message may be delivered ahead at most; a key of 5.x, where it is 3 days."""

    # filters
    enable_property_filter: bool = False
    """Serve SQL92 subscriptions."""
    filter_support_retry: bool = False
    """Apply a group's SQL92 expressions to its retried messages, too."""
    filter_data_clean_time_span: int = 86_400_000
    """ms that the filter of a group that went away is kept."""
    expect_consumer_num_use_filter: int = 32
    """Groups of a topic that the bloom filter in consumerFilter.json is sized for; Java brokers use it."""
    max_error_rate_of_bloom_filter: int = 20
    """Percent of false hits that it is sized for."""

    # statistics
    enable_detail_stat: bool = True
    """Count by queue too, not by topic and group only."""
    auto_delete_unused_stats: bool = False
    """Forget the statistics of topics and groups that are deleted; those of silent ones go after a day in any case."""
    disk_fall_recorded: bool = True
    """Remember how many bytes of log each group is behind in each queue."""
    disable_consume_if_consumer_read_slowly: bool = False
    """Every 3 min, let groups that read more than consumerFallbehindThreshold behind consume no more."""
    consumer_fallbehind_threshold: int = 16 * 1024 * 1024 * 1024
    """Bytes of log."""
    stats_log_dir: str = ""
    """Directory of stats.log, a key of ours; empty: `logs` in storePathRootDir."""

    # store
    store_path_root_dir: str = msgspec.field(default_factory=lambda: str(Path.home() / "store"))
    """Directory of everything that is stored, apart from the commit log when storePathCommitLog is set."""
    store_path_commit_log: str = ""
    """Directory of the commit log; empty: `commitlog` in storePathRootDir. Several directories are not supported."""
    mapped_file_size_commit_log: int = 1024 * 1024 * 1024
    """Bytes of a commit-log file."""
    mapped_file_size_consume_queue: int = 6_000_000
    """Bytes of a consume-queue file, rounded up to a multiple of 20."""
    max_message_size: int = 4 * 1024 * 1024
    """Largest body in bytes."""
    check_crc_on_recover: bool = msgspec.field(default=True, name="checkCRCOnRecover")
    """Verify bodies while recovering."""
    flush_disk_type: str = "ASYNC_FLUSH"
    """ASYNC_FLUSH answers when the operating system has the message, SYNC_FLUSH when the disk has it."""
    flush_interval_commit_log: int = 500
    """ms between asynchronous flushes."""
    sync_flush_timeout: int = 5_000
    """ms that a send waits for its flush before it is answered FLUSH_DISK_TIMEOUT."""
    flush_interval_consume_queue: int = 1_000
    """ms between flushes of the consume queues."""
    max_transfer_bytes_on_message_in_memory: int = 262_144
    """Most bytes of a pull answer, recent messages."""
    max_transfer_count_on_message_in_memory: int = 32
    """Most messages of a pull answer, recent messages."""
    max_transfer_bytes_on_message_in_disk: int = 65_536
    """Most bytes of a pull answer, old messages."""
    max_transfer_count_on_message_in_disk: int = 8
    """Most messages of a pull answer, old messages."""
    message_index_enable: bool = True
    """Keep an index of unique ids and keys; without it nothing is found by key."""
    max_hash_slot_num: int = 5_000_000
    """Slots of an index file; 4 bytes of memory each. Files made with other sizes are made anew at the start."""
    max_index_num: int = 20_000_000
    """Keys of an index file, plus one; 20 bytes of the disk each."""
    max_msgs_num_batch: int = 64
    """Most messages of an answer to a query by key; the answer says when there are more."""
    default_query_max_num: int = 32
    """Most messages of an answer to a query by unique id."""
    access_message_in_memory_max_ratio: int = 40
    """Percent of the machine's memory that counts as holding the end of the log."""
    file_reserved_time: int = 72
    """Hours that a commit-log file is kept after its last write."""
    delete_when: str = "04"
    """Local hours in which expired files are removed, joined by `;`."""
    disk_max_used_space_ratio: int = 75
    """Percent of the disk in use above which expired files go at any hour; held within 10 and 95."""
    clean_file_forcibly_enable: bool = True
    """Above diskSpaceCleanForciblyRatio, remove the oldest files although they have not expired."""
    disk_space_clean_forcibly_ratio: int = 85
    """Percent in use above which that is done; a key of 5.x, in 4.9.4 a property of the JVM."""
    disk_space_warning_level_ratio: int = 90
    """Percent in use above which messages are refused; a key of 5.x, in 4.9.4 a property of the JVM."""
    clean_resource_interval: int = 10_000
    """ms between looks for files to remove."""
    delete_commit_log_files_interval: int = 100
    """ms between two removed commit-log files."""
    delete_consume_queue_files_interval: int = 100
    """ms between rounds of removed consume-queue files."""
    broker_role: str = "ASYNC_MASTER"
    """ASYNC_MASTER; SYNC_MASTER answers a send when a slave has it, too; SLAVE follows the master of its brokerName."""
    ha_master_address: str = ""
    """Where a slave gets the log, `host:port`; empty: where the name server says its master is."""
    ha_send_heartbeat_interval: int = 5_000
    """ms of silence after which either side of a replication says that it lives."""
    ha_housekeeping_interval: int = 20_000
    """ms of silence after which either side closes it."""
    ha_transfer_batch_size: int = 32_768
    """Most bytes of the log in one frame."""
    ha_slave_fallbehind_max: int = 268_435_456
    """Bytes that the best slave may lag and a SYNC_MASTER still wait for it."""
    slave_timeout: int = 3_000
    """ms that a send waits for a slave before it is answered FLUSH_SLAVE_TIMEOUT."""
    slave_read_enable: bool = False
    """Send consumers that read old messages to a slave."""
    offset_check_in_slave: bool = False
    """Let a slave correct bad pull offsets, too."""

    @property
    def is_slave(self) -> bool:
        return self.broker_role == "SLAVE"

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def delete_hours(self) -> frozenset[int]:
        return frozenset(int(one) for one in self.delete_when.split(";") if one.strip())

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.message_delay_level)

    @property
    def stats_dir(self) -> Path:
        return Path(self.stats_log_dir) if self.stats_log_dir else Path(self.store_path_root_dir) / "logs"

    @property
    def config_dir(self) -> str:
        return str(Path(self.store_path_root_dir) / "config")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """messageDelayLevel, `1s 5s … 2h`, in ms. ProtocolError names what is no delay."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    found = []
    for word in text.split():
        number, unit = word[:-1], word[-1]
        if unit not in units or not number.isdecimal() or not int(number):
            raise ProtocolError(f"{word!r} is no delay: write a number above 0 and one of s, m, h, d")
        found.append(int(number) * units[unit])
    if not 1 <= len(found) <= DELAY_LEVELS_MAX:
        raise ProtocolError(f"{len(found)} delay levels, 1 to {DELAY_LEVELS_MAX} are allowed")
    return tuple(found)


def load(path: Path, options: Mapping[str, str] | None = None) -> tuple[BrokerConfig, list[str]]:
    """Return the settings of a broker.conf, and a line for each group of keys that have no effect.

    Args:
        path: the file.
        options: keys and texts of the command line, which replace those of the file.

    Raises:
        ConfigError: the file cannot be read, a value cannot be used, or a key is unsupported.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not UTF-8: {error}"
        raise ConfigError("-c", str(path), f"cannot be read: {why}") from error
    try:
        return parse({**java_properties.parse(text), **(options or {})})
    except ProtocolError as error:
        raise ConfigError("-c", str(path), str(error)) from error


def parse(properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
    """Return settings from texts, checked, and a line for each group of keys that have no effect."""
    config, others = java_properties.settings(BrokerConfig, properties)
    without_effect, unsupported = dict(WITHOUT_EFFECT), dict(UNSUPPORTED)
    if config.namesrv_addr:
        del unsupported[ADDRESS_SERVER_KEY]
        without_effect[ADDRESS_SERVER_KEY] = ADDRESS_SERVER_UNUSED
    remarks = check_keys(others, texts(config), without_effect, unsupported)
    return validate(config), remarks


def texts(config: BrokerConfig) -> dict[str, str]:
    """Key and text of every setting, as broker.conf writes them."""
    return java_properties.texts(config)


# Settings that are numbers, and what each may be.
RANGES = {
    "listen_port": (0, 65_535),  # 0: any free port
    "broker_permission": (0, 7),
    "max_request_header_size": (1024, 16 * 1024 * 1024),
    "connection_unread_max": (1, 1 << 40),
    "server_unread_max": (1, 1 << 50),
    "server_unfinished_max": (16 * 1024 * 1024, 1 << 50),  # one frame at least
    "unread_timeout_seconds": (1, 86_400),
    "timer_max_delay_sec": (1, 100 * 365 * 86_400),
    "transaction_time_out": (1, 1 << 40),
    "transaction_check_max": (1, 1 << 30),
    "transaction_check_interval": (1, 1 << 40),
    "max_msgs_num_batch": (1, 10_000),
    "default_query_max_num": (1, 10_000),
    "mapped_file_size_commit_log": (4096, (1 << 31) - 1),
    "max_error_rate_of_bloom_filter": (1, 99),
    "expect_consumer_num_use_filter": (1, FILTER_GROUPS_MAX),
    "filter_data_clean_time_span": (0, 1 << 62),
    "file_reserved_time": (0, 1 << 30),
    "delete_commit_log_files_interval": (0, 1 << 30),
    "delete_consume_queue_files_interval": (0, 1 << 30),
    "clean_resource_interval": (100, 1 << 30),
    "disk_space_clean_forcibly_ratio": (1, 100),
    "disk_space_warning_level_ratio": (1, 100),
    "ha_send_heartbeat_interval": (10, 3_600_000),
    "ha_housekeeping_interval": (10, 3_600_000),
    "ha_transfer_batch_size": (1, 4_000_000),  # a Java slave's buffer has 4 MiB
    "ha_slave_fallbehind_max": (1, 1 << 62),
    "slave_timeout": (0, 3_600_000),
}


def validate(config: BrokerConfig) -> BrokerConfig:
    """`config`, or ConfigError naming the first setting that cannot be used and what to write instead."""
    for name, (low, high) in RANGES.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise ConfigError(_camel(name), value, f"use {low} to {high}")
    for key, topic in (("brokerName", config.broker_name), ("brokerClusterName", config.broker_cluster_name)):
        if fault := topic_name_fault(topic):
            raise ConfigError(key, topic, f"it names a topic too, and {fault}")
    if config.flush_disk_type not in FLUSH_TYPES:
        raise ConfigError("flushDiskType", config.flush_disk_type, f"use {' or '.join(FLUSH_TYPES)}")
    _check_paths(config)
    _check_delays(config)
    _check_hours(config)
    _check_access(config)
    return _check_role(config)


def _check_paths(config: BrokerConfig) -> None:
    path = config.store_path_commit_log
    if "," in path or ":/" in path:  # 4.9.4 separates by a comma unless rocketmq.broker.multiPathSplitter is set
        raise ConfigError(
            "storePathCommitLog",
            path,
            "this broker has its commit log in one directory. Move all commit log files into one and name that",
        )


def _check_delays(config: BrokerConfig) -> None:
    try:
        parse_delay_levels(config.message_delay_level)
    except ProtocolError as error:
        raise ConfigError("messageDelayLevel", config.message_delay_level, str(error)) from error


def _check_hours(config: BrokerConfig) -> None:
    hours = [one.strip() for one in config.delete_when.split(";") if one.strip()]
    if not all(one.isascii() and one.isdecimal() and int(one) < 24 for one in hours):
        raise ConfigError("deleteWhen", config.delete_when, "use hours from 00 to 23, several joined by ;")


def _check_role(config: BrokerConfig) -> BrokerConfig:
    if config.broker_role not in ROLES:
        raise ConfigError("brokerRole", config.broker_role, f"use one of {', '.join(ROLES)}")
    if config.ha_master_address:
        try:
            host.parse(config.ha_master_address)
        except ProtocolError as error:
            raise ConfigError("haMasterAddress", config.ha_master_address, f"use host:port; {error}") from error
    if not config.is_slave:
        return msgspec.structs.replace(config, broker_id=0)  # as Java: the role says what it is
    if config.broker_id <= 0:
        raise ConfigError("brokerId", config.broker_id, "a slave needs one above 0, and another than the other slaves")
    return config


def to_store_config(config: BrokerConfig) -> StoreConfig:
    """What the store is told of these settings."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return StoreConfig(
        root=config.store_path_root_dir,
        commit_log=config.store_path_commit_log,
        commit_log_size=config.mapped_file_size_commit_log,
        consume_queue_size=config.mapped_file_size_consume_queue,
        flush="sync" if config.sync_flush else "async",
        follower=config.is_slave,
        check_crc_on_recover=config.check_crc_on_recover,
        max_message_size=config.max_message_size,
        delays_ms=config.delays_ms,
        index=config.message_index_enable,
        index_slots=config.max_hash_slot_num,
        index_entries=config.max_index_num,
        memory_bytes=memory_bytes * config.access_message_in_memory_max_ratio // 100,
        transfer_bytes_in_memory=config.max_transfer_bytes_on_message_in_memory,
        transfer_count_in_memory=config.max_transfer_count_on_message_in_memory,
        transfer_bytes_on_disk=config.max_transfer_bytes_on_message_in_disk,
        transfer_count_on_disk=config.max_transfer_count_on_message_in_disk,
        open_files_max=_open_files_max(),
    )


def _open_files_max() -> int:
    """Half of what this process may open (ulimit -n): the other half is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return STORE_FILES_MAX if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, STORE_FILES_MAX))


def _check_access(config: BrokerConfig) -> None:
    """What says who may come, and how many."""
    if config.acl_enable and not config.rocketmq_home:
        fix = "aclEnable needs it: the accounts are in its conf/plain_acl.yml; ROCKETMQ_HOME sets it too"
        raise ConfigError("rocketmqHome", config.rocketmq_home, fix)
    for key in ("server_connections_max", "server_requests_max", "connection_requests_max", "flush_behind_max"):
        if getattr(config, key) < 1:
            raise ConfigError(_camel(key), getattr(config, key), "use at least 1")
    if fault := topic_name_fault(config.msg_trace_topic_name):
        raise ConfigError("msgTraceTopicName", config.msg_trace_topic_name, fault)
