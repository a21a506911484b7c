"""Settings of the clients: frozen values, checked when they are made. [ClientConfig, DefaultMQProducer, DefaultMQPushConsumer]

Defaults are those of the Java 4.9.4 clients unless the sentence under a field says otherwise.
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
    """What every client has."""

    route_refresh_ms: int = 30_000
    """How often the routes of all topics in use are asked for again."""
    heartbeat_ms: int = 30_000
    """How often brokers are told that this client lives; they forget it after 120 s."""
    request_timeout_ms: int = 3_000
    """How long an answer to a control request (route, heartbeat, lock, offset) is waited for."""
    client_ip: str = ""
    """This machine's address in client and message ids; empty: the one it would use towards others."""
    instance_name: str = ""
    """Second part of the client id; empty: `<pid>#<a number of its own>`, so that no two clients share an id."""
    credentials: Credentials | None = None
    """The account that signs every request, for brokers with aclEnable; None: requests are not signed."""

    def __post_init__(self) -> None:
        of_kind("client_ip", self.client_ip, str)
        of_kind("instance_name", self.instance_name, str)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # The value may hold a secret key, so the error names its type only.
            kind = type(self.credentials).__name__
            raise ConfigError("credentials", f"<{kind}>", "give Credentials(access_key, secret_key)")
        if self.credentials is not None and not (self.credentials.access_key and self.credentials.secret_key):
            raise ConfigError("credentials", self.credentials, "give an access key and a secret key")
        within(self, "route_refresh_ms", 10, 3_600_000)
        within(self, "heartbeat_ms", 10, 60_000)
        within(self, "request_timeout_ms", 10, 600_000)


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer may be told."""

    create_topic_key: str = AUTO_CREATE_TOPIC
    """Topic whose route and permissions a topic that does not exist yet is made from."""
    default_topic_queue_nums: int = 4
    """Queues of a topic that the first send creates."""
    send_timeout_ms: int = 3_000
    """Budget of one send over all its attempts, from the moment it is among the `in_flight_max`."""
    compress_from: int = COMPRESS_MIN_BYTES
    """Bodies of this many bytes and more are compressed (zlib); batches are not."""
    retries: int = 2
    """Further attempts, at another broker where there is one, after a send that failed."""
    retry_not_stored: bool = False
    """Whether a stored message whose flush or replica was late is sent once more elsewhere (it may arrive twice)."""
    message_max: int = 4 * MIB
    """Largest body in bytes, before compression; brokers refuse more than their own maxMessageSize."""
    in_flight_max: int = 4_096
    """Sends under way at once; the next ones wait for their turn. Java has no such bound."""

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
    """What a push consumer may be told."""

    message_model: Literal["clustering", "broadcasting"] = "clustering"
    """clustering: the members of the group share the queues (each message to one of them). broadcasting: each member gets
    every message, keeps its offsets in a file of its own (`offsets_dir`), and what its listener fails on is given up."""
    offsets_dir: str = ""
    """Where a broadcasting consumer keeps its offsets; empty: ~/.rocketmq_offsets, as Java. The file is found again by
    `ClientSettings.instance_name`, which broadcasting needs."""
    consume_batch_max: int = 1
    """Messages given to one call of the listener."""
    concurrency: int = 20
    """Calls of the listener under way at once."""
    pull_batch: int = 32
    """Messages asked for at once; brokers give at most 32 from memory and 8 from cold data by default."""
    pull_interval_ms: int = 0
    """Pause between two pulls of a queue that brought messages."""
    cached_max: int = 1_000
    """Messages of one queue that may wait for the listener; then the queue is not pulled."""
    cached_bytes_max: int = 100 * MIB
    """The same in bytes of stored records."""
    span_max: int = 2_000
    """Distance between the first and the last waiting offset of a queue (concurrent listeners): how much is consumed
    again after a crash when one message does not get done."""
    suspend_ms: int = 15_000
    """How long a broker may hold a pull that finds nothing."""
    pull_timeout_ms: int = 30_000
    """How long the answer to a pull is waited for; brokers answer up to 5 s after `suspend_ms`."""
    max_reconsume_times: int = -1
    """Deliveries again before a message goes to the dead-letter topic; -1: 16, and for orderly listeners no end."""
    suspend_queue_ms: int = 1_000
    """Pause of an orderly queue after its listener failed."""
    local_retry_ms: int = 5_000
    """When a message that could be sent back to no broker is given to the listener again."""
    consume_timeout_ms: int = 15 * 60_000
    """A call of the listener that takes longer is cancelled and counts as failed. A thread cannot be cancelled: concurrent
    listeners let it go on, orderly ones wait for it."""
    commit_ms: int = 5_000
    """How often consumed offsets are stored at the brokers."""
    rebalance_ms: int = 20_000
    """How often the allocation of queues is computed, besides each time that a broker tells of a change."""
    close_wait_ms: int = 10_000
    """How long closing waits for calls of the listener that are under way. Java's default is not to wait."""

    def __post_init__(self) -> None:
        if self.message_model not in ("clustering", "broadcasting"):
            raise ConfigError("message_model", self.message_model, "choose 'clustering' or 'broadcasting'")
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
    """How traces are collected and sent."""

    topic: str = TRACE_TOPIC
    """Topic that the records go to."""
    queue_max: int = 16_384
    """Records that may wait to be sent."""
    when_full: Literal["drop", "block"] = "drop"
    """What happens when so many wait: the record is dropped and counted, or the send or the listener's call waits."""
    body_max: int = 118_000
    """Bytes of records in one trace message; Java clients send as much."""
    keys_max: int = 30_000
    """Bytes of KEYS of one trace message; with the other properties they must stay under 32,767."""
    flush_ms: int = 500
    """The oldest record waits at most this long before its batch leaves."""
    retries: int = 3
    """Further tries of a batch that could not be sent, each a whole send; then its records are counted as failed."""
    retry_ms: int = 500
    """Pause before each of these."""
    send_timeout_ms: int = 5_000
    """Budget of one try."""
    close_wait_ms: int = 5_000
    """How long closing waits until everything is sent; what is left then is counted as failed."""

    def __post_init__(self) -> None:
        within(self, "queue_max", 1, 10_000_000)
        if self.when_full not in ("drop", "block"):
            raise ConfigError("when_full", self.when_full, "choose 'drop' or 'block'")
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
