"""The configuration of a broker: broker.conf of RocketMQ, read as it is. [BrokerConfig, MessageStoreConfig, NettyServerConfig]

config_groups   every setting: type, default, unit, constraint, meaning
config_keys     keys of 4.9.4 that this broker has no setting for, with the reasons
this module     rules that concern several settings, and what the store needs of them
"""

from __future__ import annotations

import functools
import os
import resource
import ssl
from pathlib import Path
from typing import Self

import msgspec

from ariane.broker.config.config_groups import FailoverSettings, java_name
from ariane.broker.config.config_keys import UNSUPPORTED, WITHOUT_EFFECT
from ariane.errors import ConfigError, ProtocolError
from ariane.model import host
from ariane.model.topic import RETRY_PREFIX, is_system_topic, topic_name_fault
from ariane.net.interfaces import is_loopback
from ariane.settings.connections import ALL_ADDRESSES, LOOPBACK
from ariane.settings.schema import SettingsSchema
from ariane.store.message_store import StoreConfig

STORE_FILES_MAX = 65_536  # a queue that is written to has one open file; Java keeps all files of all queues open
ALL_TOPICS, NO_TOPICS = "*", "none"
DELAY_LEVELS_MAX = 64  # each level is a queue that is read before each delivery


class BrokerConfig(FailoverSettings, frozen=True, kw_only=True, rename=java_name):
    """The settings of a broker. Each field is the key of the same name in camel case."""

    @property
    def is_slave(self) -> bool:
        """Whether the broker follows a master."""
        return self.broker_role == "SLAVE"

    @property
    def requires_replication_tls(self) -> bool:
        """Whether replication is encrypted, or does not take place."""
        return self.ha_tls == "true"

    def replication_context(self) -> ssl.SSLContext | None:
        """Return the context of connections to a master that accepts TLS; None: this slave connects plain.

        Raises:
            ConfigError: a file cannot be used.
        """
        is_default = self.ha_tls == "auto" and self.encrypts_requests
        return self.client_context() if self.requires_replication_tls or is_default else None

    @property
    def has_failover(self) -> bool:
        """Whether a record in a coordination service decides which broker of the set is the master."""
        return bool(self.failover_endpoints)

    @property
    def default_address(self) -> str:
        """The address to listen on if none is configured: all, as in Java, if brokerIP1 is not of this machine only."""
        return ALL_ADDRESSES if self.broker_ip1 and not is_loopback(self.broker_ip1) else LOOPBACK

    @property
    def has_accounts(self) -> bool:
        """Whether requests need an account or user."""
        return self.acl_enable or self.authentication_enabled

    @property
    def has_trace_topic(self) -> bool:
        """Whether the trace topic exists from the start."""
        return self.trace_topic_enable or self.grpc_server_enable or self.traces_remoting

    @property
    def traces_remoting(self) -> bool:
        """Whether the broker writes traces for clients of 4.x."""
        return self.remoting_trace_topics != NO_TOPICS and self.trace_on and not self.is_slave

    def is_traced(self, topic: str) -> bool:
        """Return whether the broker writes traces of what clients of 4.x do with messages of a topic."""
        names = _topic_names(self.remoting_trace_topics)
        return topic in names or (ALL_TOPICS in names and not is_system_topic(topic))

    def concerns_traces(self, topic: str) -> bool:
        """Return whether traces need requests for a topic: of its messages, of retries, or with traces of clients."""
        if not self.traces_remoting:
            return False
        return topic == self.msg_trace_topic_name or topic.startswith(RETRY_PREFIX) or self.is_traced(topic)

    @property
    def sync_flush(self) -> bool:
        """Whether responses wait for the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def delete_hours(self) -> frozenset[int]:
        """Local hours in which expired files are removed."""
        return frozenset(int(hour) for hour in self.delete_when.split(";") if hour.strip())

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """Delay of each level in ms, beginning with level 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def stats_dir(self) -> Path:
        """Directory of stats.log."""
        return Path(self.stats_log_dir) if self.stats_log_dir else Path(self.store_path_root_dir) / "logs"

    @property
    def config_dir(self) -> str:
        """Directory of the JSON documents and of the change log."""
        return str(Path(self.store_path_root_dir) / "config")

    def validate(self) -> Self:
        """Return the configuration that the broker runs with: a master has broker id 0, whatever is set.

        Raises:
            ConfigError: a value is invalid. The message names the first one, and what is expected.
        """
        config = super().validate()
        for key, name in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            if fault := topic_name_fault(name):
                raise ConfigError(key, name, f"also names a topic, and {fault}")
        if fault := topic_name_fault(self.msg_trace_topic_name):
            raise ConfigError("msgTraceTopicName", self.msg_trace_topic_name, fault)
        for name in _topic_names(self.remoting_trace_topics) - {ALL_TOPICS, NO_TOPICS}:
            if fault := topic_name_fault(name):
                raise ConfigError("remotingTraceTopics", self.remoting_trace_topics, f"{name!r}: {fault}")
        _check_paths(self)
        _check_delay_levels(self)
        _check_delete_hours(self)
        _check_role(self)
        # As in Java: the role decides which broker is the master, not the id. With failover it is the id of this broker as a slave.
        return config if self.is_slave or self.has_failover else msgspec.structs.replace(config, broker_id=0)


@functools.lru_cache(maxsize=8)
def _topic_names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(","))


BROKER_SETTINGS = SettingsSchema(
    BrokerConfig,
    server="broker",
    file_name="broker.conf",
    list_command="getBrokerConfig",
    without_effect=WITHOUT_EFFECT,
    unsupported=UNSUPPORTED,
)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays of messageDelayLevel, `1s 5s … 2h`, in ms.

    Raises:
        ProtocolError: a delay is invalid, or the number of levels.
    """
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    delays_ms = []
    for word in text.split():
        number, unit = word[:-1], word[-1]
        if unit not in units or not number.isdecimal() or not int(number):
            raise ProtocolError(f"invalid delay {word!r}: expected a positive integer followed by s, m, h or d")
        delays_ms.append(int(number) * units[unit])
    if not 1 <= len(delays_ms) <= DELAY_LEVELS_MAX:
        raise ProtocolError(f"{len(delays_ms)} delay levels: expected 1 to {DELAY_LEVELS_MAX}")
    return tuple(delays_ms)


def _check_paths(config: BrokerConfig) -> None:
    path = config.store_path_commit_log
    if "," in path or ":/" in path:  # 4.9.4 separates by a comma unless rocketmq.broker.multiPathSplitter is set
        raise ConfigError(
            "storePathCommitLog",
            path,
            "expected one directory, since this broker stores its commit log in one. Move all commit-log files into one"
            " directory and set that",
        )
    if config.acl_enable and not config.rocketmq_home:
        raise ConfigError(
            "rocketmqHome",
            config.rocketmq_home,
            "required by aclEnable: set the directory of conf/plain_acl.yml here or in $ROCKETMQ_HOME",
        )
    if config.authorization_enabled and not config.authentication_enabled:
        fix = "requires authenticationEnabled=true: without signatures anyone may take the name of any user"
        raise ConfigError("authorizationEnabled", True, fix)


def _check_delay_levels(config: BrokerConfig) -> None:
    try:
        parse_delay_levels(config.message_delay_level)
    except ProtocolError as error:
        raise ConfigError("messageDelayLevel", config.message_delay_level, str(error)) from error


def _check_delete_hours(config: BrokerConfig) -> None:
    hours = [hour.strip() for hour in config.delete_when.split(";") if hour.strip()]
    if not all(hour.isascii() and hour.isdecimal() and int(hour) < 24 for hour in hours):
        raise ConfigError("deleteWhen", config.delete_when, "expected hours from 00 to 23, separated by ';'")


def _check_role(config: BrokerConfig) -> None:
    if config.ha_master_address:
        try:
            host.parse(config.ha_master_address)
        except ProtocolError as error:
            raise ConfigError("haMasterAddress", config.ha_master_address, f"expected host:port; {error}") from error
    if config.requires_replication_tls and config.tls_server_mode == "disabled":
        fix = "needs tls.server.mode = permissive or enforcing, whose certificate the replication port presents"
        raise ConfigError("haTls", config.ha_tls, fix)
    if config.ha_acl_enable and not (config.acl_enable and (config.access_key or not config.is_slave)):
        raise ConfigError("haAclEnable", True, "needs aclEnable=true, and the accessKey of a slave")
    if config.min_in_sync_replicas > 1 and config.broker_role == "ASYNC_MASTER":
        fix = "needs brokerRole=SYNC_MASTER: an ASYNC_MASTER answers sends that no slave has"
        raise ConfigError("minInSyncReplicas", config.min_in_sync_replicas, fix)
    if config.confirmed_reads and config.broker_role == "ASYNC_MASTER":
        raise ConfigError("confirmedReads", True, "needs brokerRole=SYNC_MASTER, whose sends wait for its slaves")
    if config.is_slave and config.broker_id <= 0:
        raise ConfigError(
            "brokerId", config.broker_id, "expected at least 1 for a slave, and different from the other slaves"
        )


def to_store_config(config: BrokerConfig) -> StoreConfig:
    """Return the settings of the message store."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return StoreConfig(
        root=config.store_path_root_dir,
        commit_log=config.store_path_commit_log,
        commit_log_size=config.mapped_file_size_commit_log,
        consume_queue_size=config.mapped_file_size_consume_queue,
        flush="sync" if config.sync_flush else "async",
        follower=config.is_slave,
        confirmed_reads=config.confirmed_reads,
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
    """Return half of the files that this process may open (ulimit -n): the other half is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return STORE_FILES_MAX if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, STORE_FILES_MAX))
