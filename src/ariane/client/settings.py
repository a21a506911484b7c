"""Settings of the clients: frozen values, validated when they are constructed. [ClientConfig, DefaultMQProducer, …]

Defaults are those of the Java 4.9.4 clients, except where the description of a field says otherwise.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ariane.client.validation import of_kind, within
from ariane.errors import ConfigError
from ariane.model.topic import AUTO_CREATE_TOPIC, TRACE_TOPIC, topic_name_fault
from ariane.protocol.compression import COMPRESS_MIN_BYTES
from ariane.protocol.signing import Credentials

MIB = 1024 * 1024


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a client instance: connections, routes, heartbeats, credentials.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        Producer(namesrv, "shop", client=ClientSettings(credentials=Credentials("access-key", "secret-key")))
    """

    route_refresh_ms: int = 30_000
    """Interval in ms at which the routes of all topics in use are fetched again."""
    heartbeat_ms: int = 30_000
    """Interval in ms of heartbeats; brokers evict a client 120 s after its last one."""
    request_timeout_ms: int = 3_000
    """Timeout in ms of control requests (routes, heartbeats, locks, offsets)."""
    client_ip: str = ""
    """IP address of this machine in client and message ids; empty: the address of the default network interface."""
    instance_name: str = ""
    """Second part of the client id; empty: `<pid>#<unique number>`, so that no two clients share an id."""
    credentials: Credentials | None = None
    """Account that signs every request, for brokers with aclEnable; None: requests are not signed."""

    def __post_init__(self) -> None:
        of_kind("client_ip", self.client_ip, str)
        of_kind("instance_name", self.instance_name, str)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # The value may contain a secret key, so the error names only its type.
            kind = type(self.credentials).__name__
            raise ConfigError("credentials", f"<{kind}>", "expected Credentials(access_key, secret_key)")
        if self.credentials is not None and not (self.credentials.access_key and self.credentials.secret_key):
            raise ConfigError(
                "credentials", self.credentials, "expected an access key and a secret key, both not empty"
            )
        within(self, "route_refresh_ms", 10, 3_600_000)
        within(self, "heartbeat_ms", 10, 60_000)
        within(self, "request_timeout_ms", 10, 600_000)


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a producer.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        Producer(namesrv, "shop", settings=ProducerSettings(send_timeout_ms=1_000, retries=1))
    """

    create_topic_key: str = AUTO_CREATE_TOPIC
    """Topic from which a new topic takes its route and permissions."""
    default_topic_queue_nums: int = 4
    """Number of queues of a topic that the first send creates."""
    send_timeout_ms: int = 3_000
    """Time budget in ms of one send over all attempts, starting once it is among the `in_flight_max`."""
    compress_from: int = COMPRESS_MIN_BYTES
    """Bodies of at least this many bytes are compressed (zlib); batches are not."""
    retries: int = 2
    """Number of further attempts after a failed send, at another broker if possible."""
    retry_not_stored: bool = False
    """Whether a stored message whose flush or replication was late is sent again elsewhere; it may arrive twice."""
    message_max: int = 4 * MIB
    """Maximum size of a body in bytes, before compression; brokers have a limit of their own (maxMessageSize)."""
    in_flight_max: int = 4_096
    """Maximum number of sends in flight; further ones wait. Java has no such limit."""

    def __post_init__(self) -> None:
        within(self, "default_topic_queue_nums", 1, 65_535)
        within(self, "send_timeout_ms", 1, 3_600_000)
        within(self, "compress_from", 1, 2**31 - 1)
        within(self, "retries", 0, 100)
        within(self, "message_max", 1, 15 * MIB)
        within(self, "in_flight_max", 1, 65_535)
        of_kind("retry_not_stored", self.retry_not_stored, bool)
        fault = topic_name_fault(of_kind("create_topic_key", self.create_topic_key, str))
        if fault:
            raise ConfigError("create_topic_key", self.create_topic_key, fault)


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a push or lite-pull consumer.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        PushConsumer(namesrv, "stock", {"orders": "*"}, listener, settings=ConsumerSettings(consume_batch_max=16))
    """

    message_model: Literal["clustering", "broadcasting"] = "clustering"
    """clustering: the members of the group share the queues, so each message reaches one of them. broadcasting: each member
    receives every message, stores its offsets in its own file (`offsets_dir`), and failed messages are dropped."""
    offsets_dir: str = ""
    """Directory for the offsets of broadcasting consumers; empty: ~/.rocketmq_offsets, as in Java. The file is found by
    `ClientSettings.instance_name`, which broadcasting requires."""
    consume_batch_max: int = 1
    """Maximum number of messages per call of the listener."""
    concurrency: int = 20
    """Maximum number of concurrent calls of the listener."""
    pull_batch: int = 32
    """Number of messages per pull; by default brokers return at most 32 from memory and 8 from disk."""
    pull_interval_ms: int = 0
    """Pause in ms after a pull that returned messages."""
    cached_max: int = 1_000
    """Maximum number of pending messages per queue; a queue that has more is not pulled."""
    cached_bytes_max: int = 100 * MIB
    """The same limit in bytes of stored records."""
    span_max: int = 2_000
    """Maximum distance between the first and the last pending offset of a queue (concurrent listeners). It limits how many
    messages are consumed again after a crash if one message stays pending for long."""
    suspend_ms: int = 15_000
    """How long in ms a broker may hold a pull request while it has no message."""
    pull_timeout_ms: int = 30_000
    """Timeout of pull requests in ms; brokers respond up to 5 s after `suspend_ms`."""
    max_reconsume_times: int = -1
    """Maximum number of redeliveries before a message becomes a dead letter; -1: 16, and for orderly listeners unlimited."""
    suspend_queue_ms: int = 1_000
    """Pause in ms of an orderly queue after its listener failed."""
    local_retry_ms: int = 5_000
    """Delay in ms of a redelivery by the client, when no broker accepts a failed message."""
    consume_timeout_ms: int = 15 * 60_000
    """Timeout in ms of a call of the listener; the call is cancelled and counts as failed. A thread cannot be cancelled:
    concurrent listeners let it run on, orderly ones wait for it."""
    commit_ms: int = 5_000
    """Interval in ms at which consumed offsets are committed."""
    rebalance_ms: int = 20_000
    """Interval in ms of rebalances, in addition to those that a broker's notification triggers."""
    close_wait_ms: int = 10_000
    """How long in ms closing waits for running calls of the listener. Java's default is not to wait."""

    def __post_init__(self) -> None:
        if self.message_model not in ("clustering", "broadcasting"):
            raise ConfigError("message_model", self.message_model, "expected 'clustering' or 'broadcasting'")
        of_kind("offsets_dir", self.offsets_dir, str)
        within(self, "consume_batch_max", 1, 1_024)
        within(self, "concurrency", 1, 1_000)
        within(self, "pull_batch", 1, 1_024)
        within(self, "pull_interval_ms", 0, 65_535)
        within(self, "cached_max", 1, 65_535)
        within(self, "cached_bytes_max", MIB, 1_024 * MIB)
        within(self, "span_max", 1, 65_535)
        within(self, "suspend_ms", 100, 600_000)
        within(self, "pull_timeout_ms", self.suspend_ms + 5_000, 3_600_000)
        within(self, "max_reconsume_times", -1, 2**31 - 1)
        within(self, "suspend_queue_ms", 10, 30_000)
        within(self, "local_retry_ms", 10, 3_600_000)
        within(self, "consume_timeout_ms", 1, 24 * 3_600_000)
        within(self, "commit_ms", 10, 600_000)
        within(self, "rebalance_ms", 10, 600_000)
        within(self, "close_wait_ms", 0, 3_600_000)


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of message traces: how records are collected and sent.

    Raises:
        ConfigError: a value has the wrong type or is out of range.

    Example:
        Producer(namesrv, "shop", trace=TraceSettings(when_full="block"))
    """

    topic: str = TRACE_TOPIC
    """Topic of the trace messages."""
    queue_max: int = 16_384
    """Maximum number of records that wait to be sent."""
    when_full: Literal["drop", "block"] = "drop"
    """What happens when the queue is full. drop: the record is dropped and counted; block: the send or the listener's call
    waits."""
    body_max: int = 118_000
    """Maximum bytes of records per trace message, as in Java."""
    keys_max: int = 30_000
    """Maximum bytes of KEYS per trace message; all properties together must stay below 32,767."""
    flush_ms: int = 500
    """Maximum age in ms of the oldest record before its batch is sent."""
    retries: int = 3
    """Number of further attempts of a failed batch, each a whole send; after them its records count as failed."""
    retry_ms: int = 500
    """Pause in ms before each of these attempts."""
    send_timeout_ms: int = 5_000
    """Time budget of one attempt in ms."""
    close_wait_ms: int = 5_000
    """How long in ms closing waits until everything is sent; remaining records count as failed."""

    def __post_init__(self) -> None:
        within(self, "queue_max", 1, 10_000_000)
        if self.when_full not in ("drop", "block"):
            raise ConfigError("when_full", self.when_full, "expected 'drop' or 'block'")
        within(self, "body_max", 1_024, 4 * MIB)
        within(self, "keys_max", 256, 32_000)
        within(self, "flush_ms", 1, 500)
        within(self, "retries", 0, 100)
        within(self, "retry_ms", 0, 60_000)
        within(self, "send_timeout_ms", 1, 600_000)
        within(self, "close_wait_ms", 0, 600_000)
        fault = topic_name_fault(of_kind("topic", self.topic, str))
        if fault:
            raise ConfigError("topic", self.topic, fault)
