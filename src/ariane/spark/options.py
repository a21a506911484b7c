"""Options of the source, as texts and as values. Names are Kafka's and rocketmq-spark's where they say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from ariane.errors import ConfigError, ProtocolError
from ariane.model import host
from ariane.model.topic import group_name_fault, topic_name_fault
from ariane.spark.offsets import EARLIEST, Positions, positions_from_json

Start = Literal["earliest", "latest"] | Positions
Offset = Annotated[int, msgspec.Meta(ge=EARLIEST, le=2**63 - 1)]

INT_MAX = 2**31 - 1  # what the header of a pull can say

ALIASES = {"nameserver": "namesrv", "subexpression": "tags", "group": "groupid"}


class Secret(str):
    """A text that shows itself to nobody who prints it."""

    def __repr__(self) -> str:
        return "..." if self else "''"


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a read was asked for."""

    namesrv: tuple[str, ...]
    """Name servers, `host:port` joined by `;`."""
    topic: str
    """One topic."""
    starting_offsets: Start = "earliest"
    """earliest, latest, or JSON {topic: {broker: {queue id: offset}}} with -2 for earliest and -1 for latest; queues that it
    does not name begin at the earliest. A query that has a checkpoint goes on from there."""
    ending_offsets: Start = "latest"
    """Batch only: latest, or JSON as above (exclusive); queues that it does not name end at the latest."""
    max_offsets_per_trigger: int | None = None
    """Streaming: most queue entries of one micro-batch, shared by the queues after what each has waiting."""
    tags: str = "*"
    """Tag expression, `a || b`."""
    fail_on_data_loss: bool = True
    """Whether offsets that are gone (retention, a lost disk) end the query, or are skipped with a warning."""
    group_id: str = "ariane-spark"
    """Group that the brokers see in pulls; no offsets are committed to it."""
    pull_batch_size: int = 32
    """Messages asked for at once; brokers answer with 32 at most unless told otherwise."""
    pull_timeout_ms: int = 10_000
    """ms to wait for an answer."""
    access_key: str = ""
    """Account that signs requests, for brokers with aclEnable; empty: they are not signed."""
    secret_key: Secret = Secret()
    """Its key. It is in no text made of the options."""
    security_token: Secret = Secret()
    """Its token, if it is a temporary account."""
    retries: int = 30
    """How often a request is tried again, a second apart, while a broker is away."""


def parse(options: Mapping[str, str]) -> SourceOptions:
    """ConfigError names the option and what to write instead. Unknown options are refused: they are mistyped ones."""
    texts: dict[str, str] = {}
    for given, text in options.items():
        name = ALIASES.get(given.lower(), given.lower())
        if name not in KNOWN:
            options_there = ", ".join(_camel(member) for member in KNOWN.values())
            raise ConfigError(name, text, f"is no option of the rocketmq source; it has {options_there}")
        if name in texts:
            raise ConfigError(given, text, f"is another name of {_camel(KNOWN[name])}, which is given too: keep one")
        texts[name] = text.strip()
    for needed in ("namesrv", "topic"):
        if not texts.get(needed):
            raise ConfigError(needed, "", f'is needed: .option("{needed}", …)')
    values: dict[str, Any] = {KNOWN[name]: _value(name, text) for name, text in texts.items()}
    return _checked(SourceOptions(**values))


# option in lower case, as Spark gives it → member
KNOWN = {name.replace("_", ""): name for name in SourceOptions.__struct_fields__}


def _camel(member: str) -> str:
    first, *others = member.split("_")
    return first + "".join(part.capitalize() for part in others)


def _value(name: str, text: str) -> object:
    if name == "namesrv":
        return tuple(one.strip() for one in text.split(";") if one.strip())
    if name in ("secretkey", "securitytoken"):
        return Secret(text)
    if name in ("startingoffsets", "endingoffsets"):
        return _offsets(name, text)
    if name == "failondataloss":
        if text.lower() not in ("true", "false"):
            raise ConfigError(name, text, "use true or false")
        return text.lower() == "true"
    if name in ("maxoffsetspertrigger", "pullbatchsize", "pulltimeoutms", "retries"):
        least = 0 if name == "retries" else 1
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= INT_MAX:
            raise ConfigError(_camel(KNOWN[name]), text, f"it has to be a whole number from {least} to {INT_MAX}")
        return int(text)
    return text


def _offsets(name: str, text: str) -> object:
    if text in ("earliest", "latest"):
        return text
    try:
        tree = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Offset]]])
        return positions_from_json(tree)
    except (msgspec.DecodeError, ValueError):
        fix = 'use earliest, latest, or JSON such as {"T": {"broker-a": {"0": 12}}} (-2 earliest, -1 latest)'
        raise ConfigError(_camel(KNOWN[name]), text, fix) from None


def _checked(options: SourceOptions) -> SourceOptions:
    for addr in options.namesrv:
        try:
            host.parse(addr)
        except ProtocolError as error:
            raise ConfigError("namesrv", addr, str(error)) from None
    if fault := topic_name_fault(options.topic):
        raise ConfigError("topic", options.topic, fault)
    if fault := group_name_fault(options.group_id):
        raise ConfigError("groupId", options.group_id, fault)
    for name, wanted in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
        for other in {queue.topic for queue in (wanted if isinstance(wanted, dict) else ())} - {options.topic}:
            raise ConfigError(name, other, f"the source reads the topic {options.topic} only: leave others out")
    if bool(options.access_key) != bool(options.secret_key):
        missing = "secretKey" if options.access_key else "accessKey"
        raise ConfigError(missing, "", "accessKey and secretKey are given together or not at all")
    if options.ending_offsets == "earliest":
        raise ConfigError(
            "endingOffsets", "earliest", "use latest or JSON: a batch that ends at the beginning is empty"
        )
    return options
