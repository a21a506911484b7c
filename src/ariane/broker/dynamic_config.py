"""The settings of a running broker: one value at a time, replaced as a whole when a tool changes some. [Configuration]

    UPDATE_BROKER_CONFIG (25) → changed() → broker.conf (and .bak) → Settings.now → who reads it next sees it

Parts that have to see changes hold the Settings and read `settings.now.<key>` at each use: one attribute more, nothing to
subscribe to. What a part copied at its start is not in CHANGEABLE, and a change of it is refused with the reason: a value
that is taken and has no effect is worse than one that is refused. Paths, names and ports are never changed by a request
(CVE-2023-33246: whoever may send one could write files of his choice).
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.broker.config import BrokerConfig, parse, texts
from ariane.broker.config_keys import UNSUPPORTED, WITHOUT_EFFECT
from ariane.errors import ConfigError
from ariane.model.topic import DataVersion
from ariane.protocol import java_properties
from ariane.protocol.setting_keys import describe_unknown_key
from ariane.store.files import Disk, read_whole, write_atomic

Bounds = tuple[int, int]
SWITCH: Bounds = (0, 0)  # true or false
TEXT: Bounds = (-1, -1)

_DAY_MS = 24 * 3_600_000
_ANSWER_MAX = 15 * 1024 * 1024  # a frame holds 16 MiB
_COUNT_MAX = 1_000_000

# What may change while the broker runs, each with its smallest and largest value. Every reader takes it from Settings.now,
# or is told in handlers.settings.take.
CHANGEABLE: dict[str, Bounds] = {
    "brokerPermission": (0, 7),
    "autoCreateTopicEnable": SWITCH,
    "defaultTopicQueueNums": (1, 65_536),
    "autoCreateSubscriptionGroup": SWITCH,
    "notifyConsumerIdsChangedEnable": SWITCH,
    "traceOn": SWITCH,
    "regionId": TEXT,
    "registerBrokerTimeoutMills": (1, 600_000),
    "longPollingEnable": SWITCH,
    "shortPollingTimeMills": (0, 120_000),
    "startAcceptSendRequestTimeStamp": (0, 2**63 - 1),
    "maxMessageSize": (1, _ANSWER_MAX),
    "maxTransferBytesOnMessageInMemory": (1, _ANSWER_MAX),
    "maxTransferCountOnMessageInMemory": (1, _COUNT_MAX),
    "maxTransferBytesOnMessageInDisk": (1, _ANSWER_MAX),
    "maxTransferCountOnMessageInDisk": (1, _COUNT_MAX),
    "accessMessageInMemoryMaxRatio": (0, 100),
    "serverConnectionsMax": (1, _COUNT_MAX),
    "serverRequestsMax": (1, 100 * _COUNT_MAX),
    "connectionRequestsMax": (1, _COUNT_MAX),
    "maxRequestHeaderSize": (1024, 16 * 1024 * 1024),
    "connectionUnreadMax": (1, 1 << 40),
    "serverUnreadMax": (1, 1 << 50),
    "serverUnfinishedMax": (16 * 1024 * 1024, 1 << 50),
    "unreadTimeoutSeconds": (1, 86_400),
    "brokerFastFailureEnable": SWITCH,
    "waitTimeMillsInSendQueue": (1, _DAY_MS),
    "waitTimeMillsInPullQueue": (1, _DAY_MS),
    "waitTimeMillsInHeartbeatQueue": (1, _DAY_MS),
    "waitTimeMillsInTransactionQueue": (1, _DAY_MS),
    "osPageCacheBusyTimeOutMills": (1, _DAY_MS),
    "flushBehindMax": (1, 2**63 - 1),
}

TEXT_MAX = 255


class DynamicConfig:
    """`now` is the value in force, `version` counts its changes."""

    def __init__(self, config: BrokerConfig, now_ms: int) -> None:
        self.current = config
        self.version = DataVersion(0, now_ms)

    def apply(self, config: BrokerConfig, now_ms: int) -> None:
        """From now on this value is in force."""
        self.current = config
        self.version = self.version.next(now_ms)


def changed(config: BrokerConfig, wanted: Mapping[str, str]) -> tuple[BrokerConfig, dict[str, str]]:
    """`config` with what is wanted, and the texts of the keys that differ. ConfigError names the first key that cannot be
    changed, why, and what to do; then nothing is. A key that is given the value it has counts as not given."""
    known = texts(config)
    different = {key: text.strip() for key, text in wanted.items() if known.get(key) != text.strip()}
    for key, text in different.items():
        if key in CHANGEABLE:
            _check(key, text, CHANGEABLE[key])
        elif key in known:
            raise ConfigError(
                key, text, "it cannot be changed while the broker runs: change broker.conf and start the broker again"
            )
        elif key in WITHOUT_EFFECT:
            raise ConfigError(key, text, f"it has no effect here ({WITHOUT_EFFECT[key]}): leave it out")
        elif key in UNSUPPORTED:
            raise ConfigError(key, text, UNSUPPORTED[key].fix)
        else:
            line = describe_unknown_key(key, [*known, *WITHOUT_EFFECT, *UNSUPPORTED])
            raise ConfigError(key, text, f"{line} getBrokerConfig lists all keys")
    made, _ = parse({**known, **different})
    after = texts(made)
    return made, {key: after[key] for key in different}


def update_file(disk: Disk, path: str, changes: Mapping[str, str]) -> None:
    """Put changed values into a broker.conf: comments and the order of lines stay; the former file is kept as `.bak`."""
    former = read_whole(disk, path)
    if former is None:
        raise FileNotFoundError(2, "the file that the broker was started with is gone", path)
    text = java_properties.edited(former.decode(), changes)
    write_atomic(disk, f"{path}.bak", former)
    write_atomic(disk, path, text.encode())


def _check(key: str, text: str, bounds: Bounds) -> None:
    if bounds == SWITCH:
        if text not in ("true", "false"):
            raise ConfigError(key, text, "use true or false")
    elif bounds == TEXT:
        if not text or len(text) > TEXT_MAX or not text.isprintable():
            raise ConfigError(key, text, f"use 1 to {TEXT_MAX} printable characters")
    else:
        low, high = bounds
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(key, text, "it has to be a whole number") from None
        if not low <= value <= high:
            raise ConfigError(key, text, f"use {low} to {high}")
