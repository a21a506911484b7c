"""Settings of the clients: frozen values, validated when they are constructed. [ClientConfig, DefaultMQProducer, …]

Defaults are those of the Java 4.9.4 clients, except where the description of a field says otherwise. Durations are seconds: a
number or a `timedelta`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ariane.client.instance.namespace import namespace_fault
from ariane.client.instance.setting_fields import FilePath, Seconds, Whole
from ariane.client.instance.validation import of_kind
from ariane.errors import ConfigError
from ariane.model.topic import AUTO_CREATE_TOPIC, TRACE_TOPIC, topic_name_fault
from ariane.net.tls import TlsOptions, Verify, check_tls
from ariane.protocol.records.compression import COMPRESS_LEVEL, COMPRESS_MIN_BYTES
from ariane.protocol.signing import Credentials

MIB = 1024 * 1024
RESPONSE_DELAY_S = 5.0  # how late a broker may respond to a pull that it holds


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings of a client instance: connections, routes, heartbeats, credentials.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        Producer(namesrv, "shop", client=ClientSettings(credentials=Credentials("access-key", "secret-key")))
    """

    route_refresh_interval: Seconds = Seconds(30, 0.01, 3_600)
    """Interval at which the routes of all topics in use are fetched again."""
    heartbeat_interval: Seconds = Seconds(30, 0.01, 60)
    """Interval of heartbeats; brokers evict a client 120 s after its last one."""
    request_timeout: Seconds = Seconds(3, 0.01, 600)
    """Timeout of control requests (routes, heartbeats, locks, offsets)."""
    client_ip: str = ""
    """IP address of this machine in client and message ids; empty: the address of the default network interface."""
    instance_name: str = ""
    """Second part of the client id; empty: `<pid>#<unique number>`, so that no two clients share an id."""
    namespace: str = ""
    """Prefix of the names of topics and groups at the brokers: `orders` is `ns%orders` there. Programs with different namespaces
    use one cluster without sharing topics and groups. Empty: none, or the one in an address of Alibaba Cloud
    (`MQ_INST_….….aliyuncs.com`)."""
    credentials: Credentials | None = None
    """Account that signs every request, for brokers with aclEnable; None: requests are not signed."""
    use_tls: bool = False
    """Whether to encrypt connections to name servers and brokers."""
    tls_verify: Verify = "true"
    """`true`: check the server's certificate and host name; `ca`: check the certificate only, because brokers register by address;
    `false`: check neither, which a Java server with its built-in test certificate needs."""
    tls_ca_file: FilePath = FilePath()
    """PEM file of trusted authorities; empty: the machine's."""
    tls_cert_file: FilePath = FilePath()
    """PEM file of the client certificate; may contain its key, too."""
    tls_key_file: FilePath = FilePath()
    """PEM file of the client certificate's key."""
    tls_key_password_file: FilePath = FilePath()
    """File with the password of that key; empty: the key is not encrypted."""

    def __post_init__(self) -> None:
        of_kind("client_ip", self.client_ip, str)
        of_kind("instance_name", self.instance_name, str)
        if of_kind("namespace", self.namespace, str) and (fault := namespace_fault(self.namespace)):
            raise ConfigError("namespace", self.namespace, fault)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # The value may contain a secret key, so the error names only its type.
            kind = type(self.credentials).__name__
            raise ConfigError("credentials", f"<{kind}>", "expected Credentials(access_key, secret_key)")
        if self.credentials is not None and not (self.credentials.access_key and self.credentials.secret_key):
            raise ConfigError(
                "credentials", self.credentials, "expected an access key and a secret key, both not empty"
            )
        of_kind("use_tls", self.use_tls, bool)
        if self.tls_verify not in ("true", "ca", "false"):
            raise ConfigError("tls_verify", self.tls_verify, "expected 'true', 'ca' or 'false'")
        check_tls(self)


def access_settings(credentials: Credentials | None, tls: TlsOptions) -> ClientSettings:
    """Return the settings of a client that signs with this account, and encrypts as these options say."""
    return ClientSettings(
        credentials=credentials,
        use_tls=tls.use_tls,
        tls_verify=tls.tls_verify,
        tls_ca_file=tls.tls_ca_file,
        tls_cert_file=tls.tls_cert_file,
        tls_key_file=tls.tls_key_file,
        tls_key_password_file=tls.tls_key_password_file,
    )


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        Producer(namesrv, "shop", settings=ProducerSettings(send_timeout=1.0, retries=1))
    """

    create_topic_key: str = AUTO_CREATE_TOPIC
    """Topic from which a new topic takes its route and permissions."""
    default_topic_queue_nums: Whole = Whole(4, 1, 65_535)
    """Number of queues of a topic that the first send creates."""
    send_timeout: Seconds = Seconds(3, 0.001, 600)
    """Time budget of one send over all attempts, starting once it is among the `in_flight_max`."""
    compress_from: Whole = Whole(COMPRESS_MIN_BYTES, 1, 2**31 - 1)
    """Bodies of at least this many bytes are compressed; batches are not."""
    compression: Literal["zlib", "lz4", "zstd"] = "zlib"
    """Algorithm; every client can read zlib, those of 4.9.4 and 5.x also the others."""
    compress_level: Whole = Whole(COMPRESS_LEVEL, 1, 9)
    """Level of zlib: 1 costs the least CPU time, 9 makes the smallest bodies."""
    retries: Whole = Whole(2, 0, 100)
    """Number of further attempts after a failed send, at another broker if possible."""
    retry_not_stored: bool = False
    """Whether a stored message whose flush or replication was late is sent again elsewhere; it may arrive twice."""
    message_max: Whole = Whole(4 * MIB, 1, 15 * MIB)
    """Maximum size of a body in bytes, before compression; brokers have a limit of their own (maxMessageSize)."""
    in_flight_max: Whole = Whole(4_096, 1, 65_535)
    """Maximum number of sends in flight; further ones wait. Java has no such limit."""
    in_flight_bytes_max: Whole = Whole(64 * MIB, MIB, 1_024 * MIB)
    """The same limit in bytes of bodies as sent."""
    avoid_slow_brokers: bool = False
    """Whether a broker that failed or took 0.55 s and more is avoided for 30 s to 10 min. [sendLatencyFaultEnable]"""
    check_timers: bool = True
    """Whether a message with `delay` or `deliver_at` is refused if its broker would deliver it immediately, as Apache 4.x does.
    The check is one request per connection. False for Alibaba Cloud's brokers of 4.x, which do not respond to it."""

    def __post_init__(self) -> None:
        of_kind("retry_not_stored", self.retry_not_stored, bool)
        of_kind("avoid_slow_brokers", self.avoid_slow_brokers, bool)
        of_kind("check_timers", self.check_timers, bool)
        if self.compression not in ("zlib", "lz4", "zstd"):
            raise ConfigError("compression", self.compression, "expected 'zlib', 'lz4' or 'zstd'")
        fault = topic_name_fault(of_kind("create_topic_key", self.create_topic_key, str))
        if fault:
            raise ConfigError("create_topic_key", self.create_topic_key, fault)


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """Settings of a consumer. Java's names for the listener of a push consumer are used; what holds for its calls holds for the
    messages that a `Consumer` yields.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        PushConsumer(namesrv, "stock", {"orders": "*"}, listener, settings=ConsumerSettings(consume_batch_max=16))
    """

    message_model: Literal["clustering", "broadcasting"] = "clustering"
    """clustering: the members of the group share the queues, so each message reaches one of them. broadcasting: each member
    receives every message, stores its offsets in its own file (`offsets_dir`), and failed messages are dropped."""
    offsets_dir: FilePath = FilePath()
    """Directory for the offsets of broadcasting consumers; empty: ~/.rocketmq_offsets, as in Java. The file is found by
    `ClientSettings.instance_name`, which broadcasting requires."""
    consume_batch_max: Whole = Whole(1, 1, 1_024)
    """Maximum number of messages per call of the listener."""
    concurrency: Whole = Whole(20, 1, 1_000)
    """Maximum number of concurrent calls of the listener."""
    rate_max: Whole = Whole(0, 0, 10_000_000)
    """Maximum number of messages per second that the listener or the loops over a `Consumer` receive, evenly spaced; 0: no
    limit."""
    pull_batch: Whole = Whole(32, 1, 1_024)
    """Number of messages per pull; by default brokers return at most 32 from memory and 8 from disk."""
    pull_interval: Seconds = Seconds(0, 0, 65.535)
    """Pause after a pull that returned messages."""
    cached_max: Whole = Whole(1_000, 1, 65_535)
    """Maximum number of pending messages per queue; a queue that has more is not pulled."""
    cached_bytes_max: Whole = Whole(100 * MIB, MIB, 1_024 * MIB)
    """The same limit in bytes of stored records."""
    span_max: Whole = Whole(2_000, 1, 65_535)
    """Maximum distance between the first and the last pending offset of a queue (concurrent listeners). It limits how many
    messages are consumed again after a crash if one message stays pending for long."""
    suspend_time: Seconds = Seconds(15, 0.1, 600)
    """How long a broker may hold a pull request while it has no message."""
    pull_timeout: Seconds = Seconds(30, 5.1, 3_600)
    """Timeout of pull requests; brokers respond up to 5 s after `suspend_time`, so it is at least 5 s longer."""
    max_reconsume_times: Whole = Whole(-1, -1, 2**31 - 1)
    """Maximum number of redeliveries before a message becomes a dead letter; -1: 16, and for orderly listeners unlimited."""
    suspend_queue_time: Seconds = Seconds(1, 0.01, 30)
    """Pause of an orderly queue after its listener failed."""
    local_retry_delay: Seconds = Seconds(5, 0.01, 3_600)
    """Delay of a redelivery by the client, when no broker accepts a failed message."""
    consume_timeout: Seconds = Seconds(900, 0.001, 86_400)
    """Timeout of a call of the listener; the call is cancelled and counts as failed. A thread cannot be cancelled:
    concurrent listeners let it run on, orderly ones wait for it. For a `Consumer`: time until a message has to be
    acknowledged."""
    commit_interval: Seconds = Seconds(5, 0.01, 600)
    """Interval at which consumed offsets are committed."""
    rebalance_interval: Seconds = Seconds(20, 0.01, 600)
    """Interval of rebalances, in addition to those that a broker's notification triggers."""
    close_timeout: Seconds = Seconds(10, 0, 3_600)
    """How long closing waits for running calls of the listener, or for messages that are not acknowledged yet. Java's default
    is not to wait."""

    def __post_init__(self) -> None:
        if self.message_model not in ("clustering", "broadcasting"):
            raise ConfigError("message_model", self.message_model, "expected 'clustering' or 'broadcasting'")
        if self.pull_timeout < self.suspend_time + RESPONSE_DELAY_S:
            fix = f"choose at least suspend_time + {RESPONSE_DELAY_S:g} = {self.suspend_time + RESPONSE_DELAY_S:g} s"
            raise ConfigError("pull_timeout", self.pull_timeout, fix)


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """Settings of message traces: how records are collected and sent.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        Producer(namesrv, "shop", trace=TraceSettings(when_full="block"))
    """

    topic: str = TRACE_TOPIC
    """Topic of the trace messages."""
    queue_max: Whole = Whole(16_384, 1, 10_000_000)
    """Maximum number of records that wait to be sent."""
    when_full: Literal["drop", "block", "spill"] = "drop"
    """What happens when the queue is full. drop: the record is dropped and counted; block: the send or the listener's call
    waits; spill: the record waits in a file of `spill_dir` and is sent later, after a crash by the next process. With spill,
    records that no broker accepted and those that closing has no time for wait in the file, too."""
    spill_dir: FilePath = FilePath()
    """Directory of these files, which processes of this machine may share."""
    spill_bytes_max: Whole = Whole(256 * MIB, MIB, 1_024 * 1_024 * MIB)
    """Maximum bytes of these files per client; beyond, records are dropped and counted."""
    body_max: Whole = Whole(118_000, 1_024, 4 * MIB)
    """Maximum bytes of records per trace message, as in Java."""
    keys_max: Whole = Whole(30_000, 256, 32_000)
    """Maximum bytes of KEYS per trace message; all properties together must stay below 32,767."""
    flush_interval: Seconds = Seconds(0.5, 0.001, 0.5)
    """Maximum age of the oldest record before its batch is sent."""
    retries: Whole = Whole(3, 0, 100)
    """Number of further attempts of a failed batch, each a whole send; after them its records count as failed."""
    retry_delay: Seconds = Seconds(0.5, 0, 60)
    """Pause before each of these attempts."""
    send_timeout: Seconds = Seconds(5, 0.001, 600)
    """Time budget of one attempt."""
    close_timeout: Seconds = Seconds(5, 0, 600)
    """How long closing waits until everything is sent; remaining records count as failed."""

    def __post_init__(self) -> None:
        if self.when_full not in ("drop", "block", "spill"):
            raise ConfigError("when_full", self.when_full, "expected 'drop', 'block' or 'spill'")
        if (self.when_full == "spill") != bool(self.spill_dir):
            fix = "when_full='spill' needs a directory for its files, and nothing else uses one"
            raise ConfigError("spill_dir", self.spill_dir, fix)
        fault = topic_name_fault(of_kind("topic", self.topic, str))
        if fault:
            raise ConfigError("topic", self.topic, fault)
