"""The settings of a broker, group by group. [BrokerConfig, MessageStoreConfig, NettyServerConfig]

Each struct is one group of docs/configuration.md, and its docstring the heading. A group extends the one above it, because the
keys of broker.conf have no hierarchy and a msgspec struct has one base: the last one holds them all. Defaults are those of
4.9.4 unless the docstring of a field says otherwise.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ariane.model.topic import TRACE_TOPIC
from ariane.settings.definitions import (
    ARIANE_ONLY,
    ROCKETMQ_5,
    Bytes,
    Changeable,
    Concealed,
    DefaultText,
    Hours,
    Milliseconds,
    Percent,
    Seconds,
)
from ariane.settings.limits import Limit
from ariane.settings.tls import ClientTlsSettings, Switch

TOPICS_MAX = 200_000
GROUPS_MAX = 100_000
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


class IdentitySettings(ClientTlsSettings, frozen=True, kw_only=True, rename=java_name):
    """Identity and registration."""

    broker_cluster_name: str = "DefaultCluster"
    """Name of the cluster; also the name of a topic."""
    broker_name: Annotated[str, DefaultText("the host name")] = msgspec.field(default_factory=socket.gethostname)
    """Name that a master and its slaves share; also the name of a topic."""
    broker_id: int = 0
    """At least 1 for a slave, and different for each slave. A master is 0, whatever is set."""
    broker_ip1: Annotated[str, DefaultText("bindAddress, or the address of this machine")] = ""
    """Address that clients are given: an IP address, or a host name that stays when the address changes."""
    broker_ip2: Annotated[str, DefaultText("brokerIP1")] = ""
    """Address that slaves are given for replication."""
    listen_port: Annotated[int, Meta(ge=0, le=65_535)] = 10911
    """Port for clients; 0 takes a free one."""
    namesrv_addr: Annotated[str, DefaultText("`$NAMESRV_ADDR`")] = msgspec.field(
        default_factory=lambda: os.environ.get("NAMESRV_ADDR", "")
    )
    """Name servers, `host:port` separated by `;`. Empty: the broker registers nowhere."""
    register_name_server_period: Milliseconds = 30_000
    """Interval of registrations; limited to 10,000 to 60,000."""
    register_broker_timeout_mills: Annotated[Milliseconds, Changeable(1, 600_000)] = 6_000
    """Timeout of requests to name servers."""
    region_id: Annotated[str, Changeable()] = "DefaultRegion"
    """Region in the response to every send."""


class TopicSettings(IdentitySettings, frozen=True, kw_only=True, rename=java_name):
    """Topics, groups and traces."""

    auto_create_topic_enable: Annotated[bool, _SWITCH] = True
    """Create a topic when it is first sent to, with the settings of TBW102."""
    default_topic_queue_nums: Annotated[int, Changeable(1, 65_536)] = 8
    """Queues of TBW102, and so the maximum of an auto-created topic."""
    auto_create_subscription_group: Annotated[bool, _SWITCH] = True
    """Create a consumer group when it is first used."""
    cluster_topic_enable: bool = True
    """Allow reading and writing the topic that is named like the cluster."""
    broker_topic_enable: bool = True
    """Allow reading and writing the topic that is named like the broker."""
    trace_topic_enable: bool = False
    """Create the trace topic at the start."""
    msg_trace_topic_name: str = TRACE_TOPIC
    """Name of the trace topic."""
    trace_on: Annotated[bool, _SWITCH] = True
    """TRACE_ON in the responses to sends; producers trace only while it is true."""
    remoting_trace_topics: Annotated[str, ARIANE_ONLY, Changeable(length_max=4096)] = "none"
    """Topics, separated by commas, `*` or `none`: the broker writes traces of what clients of 4.x do with their messages."""
    notify_consumer_ids_changed_enable: Annotated[bool, _SWITCH] = True
    """Notify the members of a group when a member joins or leaves."""


class AccessSettings(TopicSettings, frozen=True, kw_only=True, rename=java_name):
    """Access control."""

    broker_permission: Annotated[int, Changeable(0, 7), Meta(ge=0, le=7)] = 6
    """4 (read) + 2 (write). A missing bit is missing in every route of this broker."""
    acl_enable: bool = False
    """Serve only requests that are signed by an account of plain_acl.yml and permitted by it."""
    rocketmq_home: Annotated[str, DefaultText("`$ROCKETMQ_HOME`")] = msgspec.field(
        default_factory=lambda: os.environ.get("ROCKETMQ_HOME", "")
    )
    """Directory of conf/plain_acl.yml; required with aclEnable."""
    access_key: Annotated[str, ARIANE_ONLY] = ""
    """Account that signs this broker's requests to name servers and to its master."""
    secret_key: Annotated[str, ARIANE_ONLY, Concealed()] = ""
    """Its secret key. No request or command prints it."""
    secret_key_file: Annotated[str, ARIANE_ONLY] = ""
    """File with the secret key, instead of secretKey."""
    secret_key_variable: Annotated[str, ARIANE_ONLY] = ""
    """Environment variable with the secret key, instead of secretKey."""
    authentication_enabled: Annotated[bool, ROCKETMQ_5] = False
    """Serve only requests that a user has signed (ACL 2.0), or, with aclEnable, an account of plain_acl.yml."""
    authorization_enabled: Annotated[bool, ROCKETMQ_5] = False
    """Check the policies of users. Without, each user may do everything."""
    auth_config_path: Annotated[str, ROCKETMQ_5, DefaultText("storePathRootDir/config")] = ""
    """Directory of users.json, which holds users and policies."""
    init_authentication_user: Annotated[str, ROCKETMQ_5, Concealed()] = ""
    """Super user that is created if it does not exist: `{"username":"…","password":"…"}`."""
    inner_client_authentication_credentials: Annotated[str, ROCKETMQ_5, Concealed()] = ""
    """Another one: `{"accessKey":"…","secretKey":"…"}`. A slave signs its requests to its master with it."""
    authentication_whitelist: Annotated[str, ROCKETMQ_5] = ""
    """Request codes that need no signature, separated by commas; with authorizationEnabled only those that are also in
    authorizationWhitelist. Names of gRPC messages have no effect."""
    authorization_whitelist: Annotated[str, ROCKETMQ_5] = ""
    """Request codes that need a signature only."""


class GrpcSettings(AccessSettings, frozen=True, kw_only=True, rename=java_name):
    """Clients of RocketMQ 5 (gRPC)."""

    grpc_server_enable: Annotated[bool, ARIANE_ONLY] = False
    """Serve clients of RocketMQ 5 on grpcServerPort. Needs the extra `grpc`."""
    grpc_server_port: Annotated[int, ROCKETMQ_5, Meta(ge=0, le=65_535)] = 8081
    """Port for these clients, on bindAddress; 0 takes a free one."""
    grpc_trace_enable: Annotated[bool, ARIANE_ONLY, _SWITCH] = True
    """Write the message traces of these clients, which write none."""
    grpc_transport: Annotated[Literal["aio", "native", "auto"], ARIANE_ONLY] = "aio"
    """HTTP/2 of this port: the package grpcio (`aio`), or the `native` kernels. `auto`: native where they are installed, unless
    certificates of clients are verified."""
    default_message_type: Annotated[Literal["MIXED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"], ARIANE_ONLY] = "MIXED"
    """Type of messages that these clients may send to a topic which declares none (`message.type`). In 5.3.3, that is NORMAL."""


class FlowControlSettings(GrpcSettings, frozen=True, kw_only=True, rename=java_name):
    """Limits and flow control."""

    server_requests_max: Annotated[int, ARIANE_ONLY, Changeable(1, 100 * _COUNT_MAX), Meta(ge=1)] = 100_000
    """Requests in flight, held ones included, which are three quarters at most; further ones get code 2 [OVERLOAD]."""
    connection_requests_max: Annotated[int, ARIANE_ONLY, Changeable(1, _COUNT_MAX), Meta(ge=1)] = 16_384
    """Requests in flight of one connection."""
    broker_fast_failure_enable: Annotated[bool, _SWITCH] = True
    """Answer code 2 [TIMEOUT_CLEAN_QUEUE] to requests that waited longer than below."""
    wait_time_mills_in_send_queue: Annotated[Milliseconds, Changeable(1, _DAY_MS)] = 200
    """Longest wait of a send before it is handled."""
    wait_time_mills_in_pull_queue: Annotated[Milliseconds, Changeable(1, _DAY_MS)] = 5_000
    """Longest wait of a pull before it is handled."""
    wait_time_mills_in_heartbeat_queue: Annotated[Milliseconds, Changeable(1, _DAY_MS)] = 31_000
    """Longest wait of a heartbeat before it is handled."""
    wait_time_mills_in_transaction_queue: Annotated[Milliseconds, Changeable(1, _DAY_MS)] = 3_000
    """Longest wait of END_TRANSACTION before it is handled."""
    os_page_cache_busy_time_out_mills: Annotated[Milliseconds, Changeable(1, _DAY_MS)] = 1_000
    """If storing a send takes longer, sends get code 2 [REJECTREQUEST] for the time it took."""
    flush_behind_max: Annotated[Bytes, ARIANE_ONLY, Changeable(1, _INT64_MAX), Meta(ge=1)] = 2 * 1024 * 1024 * 1024
    """Unflushed bytes of the commit log above which sends get code 2 [REJECTREQUEST]."""
    start_accept_send_request_time_stamp: Annotated[Milliseconds, Changeable(0, _INT64_MAX)] = 0
    """Reject sends before this time since 1970."""


class ObjectLimits(FlowControlSettings, frozen=True, kw_only=True, rename=java_name):
    """Limits of topics, groups and subscriptions."""

    server_topics_max: Annotated[int, ARIANE_ONLY, Changeable(1, TOPICS_MAX), Meta(ge=1, le=TOPICS_MAX)] = TOPICS_MAX
    """Topics. Sends create three quarters of them at most; retry and dead-letter topics may exceed it by a quarter."""
    server_groups_max: Annotated[int, ARIANE_ONLY, Changeable(1, GROUPS_MAX), Meta(ge=1, le=GROUPS_MAX)] = GROUPS_MAX
    """Consumer groups."""
    server_queues_max: Limit = 0
    """Queues of all topics."""
    server_subscriptions_max: Limit = 0
    """Topics that consumers subscribe to, counted for each consumer."""
    address_topics_per_hour: Limit = 0
    """Topics that clients of one address may create in an hour, by sends, heartbeats or tools."""
    address_groups_per_hour: Limit = 0
    """Consumer groups that clients of one address may create in an hour."""
    address_queues_per_hour: Limit = 0
    """Queues of the topics that clients of one address may create or enlarge in an hour."""
    address_subscriptions_max: Limit = 0
    """As serverSubscriptionsMax, for one address."""
    account_topics_per_hour: Limit = 0
    """As addressTopicsPerHour, for one account."""
    account_groups_per_hour: Limit = 0
    """As addressGroupsPerHour, for one account."""
    account_queues_per_hour: Limit = 0
    """As addressQueuesPerHour, for one account."""
    account_subscriptions_max: Limit = 0
    """As serverSubscriptionsMax, for one account."""


class MessageSettings(ObjectLimits, frozen=True, kw_only=True, rename=java_name):
    """Messages, pulls and queries."""

    max_message_size: Annotated[Bytes, Changeable(1, _RESPONSE_MAX), Meta(ge=1)] = 4 * 1024 * 1024
    """Largest body."""
    long_polling_enable: Annotated[bool, _SWITCH] = True
    """Hold a pull without messages until one arrives or the client's timeout ends."""
    short_polling_time_mills: Annotated[Milliseconds, Changeable(0, 120_000)] = 1_000
    """Hold such a pull for this time if long polling is off."""
    store_reply_message_enable: bool = True
    """Store the replies of request-reply in addition to pushing them."""
    max_transfer_bytes_on_message_in_memory: Annotated[Bytes, Changeable(1, _RESPONSE_MAX)] = 262_144
    """Maximum of a pull response with recent messages."""
    max_transfer_count_on_message_in_memory: Annotated[int, Changeable(1, _COUNT_MAX)] = 1_024
    """Messages of a pull response with recent messages; Java: 32."""
    max_transfer_bytes_on_message_in_disk: Annotated[Bytes, Changeable(1, _RESPONSE_MAX)] = 65_536
    """Maximum of a pull response with old messages."""
    max_transfer_count_on_message_in_disk: Annotated[int, Changeable(1, _COUNT_MAX)] = 8
    """Messages of a pull response with old messages."""
    access_message_in_memory_max_ratio: Annotated[Percent, Changeable(0, 100)] = 40
    """Share of the machine's memory; messages within that distance from the end of the log are recent."""
    max_msgs_num_batch: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Messages of a query by key; the response says if there are more."""
    default_query_max_num: Annotated[int, Meta(ge=1, le=10_000)] = 32
    """Messages of a query by unique id."""


class TransactionSettings(MessageSettings, frozen=True, kw_only=True, rename=java_name):
    """Transactions."""

    reject_transaction_message: bool = False
    """Reject transactional messages."""
    transaction_time_out: Annotated[Milliseconds, Meta(ge=1, le=1 << 40)] = 6_000
    """Age of a half message at the first check of its transaction, unless the message sets another."""
    transaction_check_max: Annotated[int, Meta(ge=1, le=1 << 30)] = 15
    """Checks before a half message is moved to TRANS_CHECK_MAX_TIME_TOPIC."""
    transaction_check_interval: Annotated[Milliseconds, Meta(ge=1, le=1 << 40)] = 60_000
    """Interval of checks."""


class DelaySettings(TransactionSettings, frozen=True, kw_only=True, rename=java_name):
    """Delayed messages."""

    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delay of each level, beginning with level 1: numbers followed by s, m, h or d."""
    flush_delay_offset_interval: Milliseconds = 10_000
    """Interval of writing delayOffset.json."""
    timer_max_delay_sec: Annotated[Seconds, ROCKETMQ_5, Meta(ge=1, le=100 * 365 * 86_400)] = 365 * 86_400
    """Longest delay of a message with a delivery time; 3 days in 5.x."""


class FilterSettings(DelaySettings, frozen=True, kw_only=True, rename=java_name):
    """SQL92 filters."""

    enable_property_filter: bool = False
    """Serve SQL92 subscriptions."""
    filter_support_retry: bool = False
    """Filter the retried messages of a group, too."""
    filter_data_clean_time_span: Annotated[Milliseconds, Meta(ge=0, le=1 << 62)] = 86_400_000
    """Keep the filter of a group without members for this time."""
    expect_consumer_num_use_filter: Annotated[int, Meta(ge=1, le=FILTER_GROUPS_MAX)] = 32
    """Groups per topic that the bloom filter of consumerFilter.json is sized for. Java brokers use it."""
    max_error_rate_of_bloom_filter: Annotated[Percent, Meta(ge=1, le=99)] = 20
    """False positives that the bloom filter is sized for."""


class StatisticsSettings(FilterSettings, frozen=True, kw_only=True, rename=java_name):
    """Statistics."""

    enable_detail_stat: bool = True
    """Count by queue, too, and not only by topic and group."""
    auto_delete_unused_stats: bool = False
    """Remove the statistics of deleted topics and groups immediately; unused statistics are removed after a day in any case."""
    disk_fall_recorded: bool = True
    """Record the lag of each group and queue in bytes of log."""
    disable_consume_if_consumer_read_slowly: bool = False
    """Every 3 minutes, disable groups whose lag exceeds consumerFallbehindThreshold."""
    consumer_fallbehind_threshold: Bytes = 16 * 1024 * 1024 * 1024
    """Lag above which a group is disabled."""
    stats_log_dir: Annotated[str, ARIANE_ONLY, DefaultText("`logs` in storePathRootDir")] = ""
    """Directory of stats.log."""


class StorageSettings(StatisticsSettings, frozen=True, kw_only=True, rename=java_name):
    """Storage."""

    store_path_root_dir: Annotated[str, DefaultText("`~/store`")] = msgspec.field(
        default_factory=lambda: str(Path.home() / "store")
    )
    """Directory of all stored files."""
    store_path_commit_log: Annotated[str, DefaultText("`commitlog` in storePathRootDir")] = ""
    """Directory of the commit log. Several directories are refused."""
    mapped_file_size_commit_log: Annotated[Bytes, Meta(ge=4096, le=(1 << 31) - 1)] = 1024 * 1024 * 1024
    """Size of a commit-log file; fixed once there are files."""
    mapped_file_size_consume_queue: Bytes = 6_000_000
    """Size of a consume-queue file, rounded up to a multiple of 20."""
    check_crc_on_recover: bool = msgspec.field(default=True, name="checkCRCOnRecover")
    """Verify the checksums of bodies while the log is recovered."""
    message_index_enable: bool = True
    """Index unique ids and keys; without the index, queries by key find nothing."""
    max_hash_slot_num: int = 5_000_000
    """Slots of an index file, 4 bytes of memory each. Files of other sizes are rebuilt at the start."""
    max_index_num: int = 20_000_000
    """Entries of an index file, plus one; 20 bytes of disk space each."""


class FlushSettings(StorageSettings, frozen=True, kw_only=True, rename=java_name):
    """Flushing."""

    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"
    """When a send is answered, and acknowledged to a master: after the write (ASYNC_FLUSH) or after the fsync (SYNC_FLUSH)."""
    flush_interval_commit_log: Milliseconds = 500
    """Interval of asynchronous flushes."""
    sync_flush_timeout: Milliseconds = 5_000
    """Wait for the flush of a send before it is answered FLUSH_DISK_TIMEOUT."""
    flush_interval_consume_queue: Milliseconds = 1_000
    """Interval of flushes of consume queues; longer if they take more than a fifth of the time."""
    flush_consumer_offset_interval: Milliseconds = 5_000
    """Interval of writing consumerOffset.json."""


class RetentionSettings(FlushSettings, frozen=True, kw_only=True, rename=java_name):
    """Retention."""

    file_reserved_time: Annotated[Hours, Meta(ge=0, le=1 << 30)] = 72
    """Keep a commit-log file for this time after its last write."""
    delete_when: str = "04"
    """Local hours, 00 to 23, in which expired files are removed; separated by `;`."""
    disk_max_used_space_ratio: Percent = 75
    """Disk usage above which expired files are removed at any hour; limited to 10 to 95."""
    clean_file_forcibly_enable: bool = True
    """Above diskSpaceCleanForciblyRatio, remove the oldest files before they expire. A member of a set with failover never does."""
    disk_space_clean_forcibly_ratio: Annotated[Percent, ROCKETMQ_5, Meta(ge=1, le=100)] = 85
    """Disk usage for cleanFileForciblyEnable; a property of the JVM in 4.9.4."""
    disk_space_warning_level_ratio: Annotated[Percent, ROCKETMQ_5, Meta(ge=1, le=100)] = 90
    """Disk usage above which messages are refused; a property of the JVM in 4.9.4."""
    clean_resource_interval: Annotated[Milliseconds, Meta(ge=100, le=1 << 30)] = 10_000
    """Interval of checks for files to remove."""
    delete_commit_log_files_interval: Annotated[Milliseconds, Meta(ge=0, le=1 << 30)] = 100
    """Pause between two removed commit-log files."""
    delete_consume_queue_files_interval: Annotated[Milliseconds, Meta(ge=0, le=1 << 30)] = 100
    """Pause between rounds of removed consume-queue files."""


class ReplicationSettings(RetentionSettings, frozen=True, kw_only=True, rename=java_name):
    """Replication."""

    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    """SYNC_MASTER answers a send when a slave has it; SLAVE follows the master of its brokerName."""
    ha_master_address: Annotated[str, DefaultText("from the name server")] = ""
    """Replication address of a slave's master, `host:port`."""
    ha_tls: Annotated[Switch, ARIANE_ONLY] = "auto"
    """Encrypt replication. `true`: a slave connects encrypted, a master refuses plain slaves. `auto`: a slave that encrypts its
    requests connects encrypted to Ariane's masters. Java's replication is always plain."""
    ha_acl_enable: Annotated[bool, ARIANE_ONLY] = False
    """A master serves only slaves whose account has its name in `brokers`, a slave proves its accessKey. Java's slaves cannot."""
    member_name: Annotated[
        str, ARIANE_ONLY, Meta(pattern=r"^[A-Za-z0-9_.\-]{0,127}$"), DefaultText("brokerName-brokerId")
    ] = ""
    """Name of this broker among its master and slaves, which stays if its role changes."""
    min_in_sync_replicas: Annotated[int, ARIANE_ONLY, Meta(ge=1, le=100)] = 1
    """Brokers that have all messages, the master included, below which a SYNC_MASTER refuses sends (14)."""
    confirmed_reads: Annotated[bool, ARIANE_ONLY] = False
    """Consumers read only messages that all in-sync brokers have. Needs SYNC_MASTER, and the same value at its slaves."""
    ha_send_heartbeat_interval: Annotated[Milliseconds, Meta(ge=10, le=3_600_000)] = 5_000
    """Idle time after which either side sends a heartbeat."""
    ha_housekeeping_interval: Annotated[Milliseconds, Meta(ge=10, le=3_600_000)] = 20_000
    """Silence after which either side closes the connection."""
    ha_transfer_batch_size: Annotated[Bytes, Meta(ge=1, le=4_000_000)] = 32_768  # a Java slave's buffer has 4 MiB
    """Largest part of the log in one frame."""
    ha_slave_fallbehind_max: Annotated[Bytes, Meta(ge=1, le=1 << 62)] = 268_435_456
    """Lag of the best slave above which a SYNC_MASTER does not wait for it."""
    slave_timeout: Annotated[Milliseconds, Meta(ge=0, le=3_600_000)] = 3_000
    """Wait for a slave before a send is answered FLUSH_SLAVE_TIMEOUT."""
    slave_read_enable: bool = False
    """Send consumers of old messages to a slave."""
    offset_check_in_slave: bool = False
    """Correct invalid pull offsets on a slave, too."""


class FailoverSettings(ReplicationSettings, frozen=True, kw_only=True, rename=java_name):
    """Automatic failover."""

    failover_endpoints: Annotated[str, ARIANE_ONLY] = ""
    """Members of the etcd cluster that stores who leads, `http://host:port` separated by `;`; or a Lease of Kubernetes:
    `kubernetes` in a pod, else `kubernetes+https://host:port/namespace`. Empty: no failover."""
    failover_members: Annotated[str, ARIANE_ONLY] = ""
    """All brokers of the set by their memberName, `name=host:listenPort` separated by `;`."""
    failover_prefix: Annotated[str, ARIANE_ONLY, DefaultText("`/ariane/`brokerClusterName`/`brokerName")] = ""
    """Keys of the set in etcd begin with it. With Kubernetes the name of the Lease: `ariane-`brokerClusterName`-`brokerName."""
    failover_ttl: Annotated[Seconds, ARIANE_ONLY, Meta(ge=3, le=300)] = 10
    """Life of the master's lease: another broker takes over that much later, or sooner."""
    failover_probe_interval: Annotated[Milliseconds, ARIANE_ONLY, Meta(ge=0, le=60_000)] = 0
    """Pause between two probes of the disk, which write and flush 4 KB. 0: a quarter of failoverProbeLimit, at most 1 s."""
    failover_probe_limit: Annotated[Milliseconds, ARIANE_ONLY, Meta(ge=0, le=300_000)] = 0
    """Age of the last probe that ended, beyond which the master gives its lease up. 0: a third of failoverTtl."""
    failover_failsafe: Annotated[bool, ARIANE_ONLY] = False
    """Without etcd, serve on while all brokers of the in-sync set agree. The same value at all of them."""
    cut_reserved_time: Annotated[Hours, ARIANE_ONLY, Meta(ge=0, le=87_600)] = 0
    """Age at which files in `cut`, with what was cut off the log, are removed, an hour after they were listed. 0: never."""
    cut_files_max: Annotated[int, ARIANE_ONLY, Meta(ge=0, le=100_000)] = 0
    """Number of files in `cut` above which the oldest are removed in the same way. 0: any."""
    failover_user: Annotated[str, ARIANE_ONLY] = ""
    """User of etcd."""
    failover_password_file: Annotated[str, ARIANE_ONLY] = ""
    """File with the password of that user, or with a token of the Kubernetes API."""
    failover_ca_file: Annotated[str, ARIANE_ONLY, DefaultText("the system's")] = ""
    """Certificates that etcd's is signed by, for `https://` endpoints."""
    failover_cert_file: Annotated[str, ARIANE_ONLY] = ""
    """Certificate that this broker shows to etcd, without a common name if etcd has users."""
    failover_key_file: Annotated[str, ARIANE_ONLY] = ""
    """Key of that certificate."""
