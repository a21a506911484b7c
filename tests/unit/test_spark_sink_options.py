"""Options of a write: errors state the remedy and never contain secrets."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from ariane.errors import ConfigError
from ariane.spark.read import source_options
from ariane.spark.wire.access import ClusterAccess
from ariane.spark.write.sink_options import check_columns, parse

TYPES: dict[str, DataType] = {
    "BINARY": BinaryType(), "BIGINT": LongType(), "INT": IntegerType(), "STRING": StringType(),
    "MAP": MapType(StringType(), StringType()), "COUNTS": MapType(StringType(), IntegerType()),
}  # fmt: skip


def schema(ddl: str) -> StructType:
    """A schema, without a session that could read the text."""
    return StructType([StructField(name, TYPES[kind]) for name, kind in (column.split() for column in ddl.split(","))])


NEEDED = {"namesrv": "127.0.0.1:9876", "topic": "T"}


def fault(**given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse({**NEEDED, **given})
    return str(caught.value)


def test_options_have_aliases_and_defaults() -> None:
    options = parse(
        {"nameServer": "a:1; b:2", "topic": "T", "timeoutms": "5", "checkpointLocation": "/c", "group": "G"}
    )
    assert (options.namesrv, options.timeout_ms, options.group_id, options.batch_size) == (("a:1", "b:2"), 5, "G", 1000)


def test_invalid_options_are_named() -> None:
    assert (
        "batch = ...: is not an option of the rocketmq sink; did you mean batchSize? expected one of namesrv, groupId"
        in fault(batch="5")
    )
    assert fault(batchSize="0").startswith("batchSize = '0': expected an integer from 1 to")
    assert "maxInFlight" in fault(maxInFlight="many")
    assert fault(dropReservedProperties="yes") == "dropReservedProperties = 'yes': expected true or false"
    assert "is reserved for the broker" in fault(topic="SCHEDULE_TOPIC_XXXX")
    assert "characters other than" in fault(topic="a b")
    assert "writes bodies as they are" in fault(bodyFormat="json")
    assert fault(namesrv="") == "namesrv = '': is empty: set a value, or remove the option if it is optional"
    assert "namesrv = 'nowhere'" in fault(namesrv="nowhere")
    assert fault(runId="a/b") == "runId = 'a/b': use 1 to 64 letters, digits, _ and -"
    assert fault(accessKey="me").startswith("secretKey = ''")
    assert "is set, too: keep one" in fault(nameServer="b:1")


def test_access_options_equal_those_of_the_source() -> None:
    shared = {
        "group": "G", "timeoutMs": "5", "retries": "3", "accessKey": "me", "secretKey": "hidden",
        "securityToken": "t",
        "useTls": "true", "tlsVerify": "ca",
        "tlsCaFile": "ca.pem", "tlsCertFile": "own.pem", "tlsKeyFile": "own.key", "tlsKeyPasswordFile": "password",
    }  # fmt: skip
    given = {"namesrv": "a:1", "topic": "T", **shared}
    sink, source = parse(given), source_options.parse(given)
    for name in ClusterAccess.__struct_fields__:
        assert getattr(sink, name) == getattr(source, name) != getattr(ClusterAccess(), name), name
    assert "has no effect without useTls" in fault(tlsCaFile="ca.pem")
    assert (
        fault(useTls="true", tlsKeyFile="own.key")
        == "tlsKeyFile = 'own.key': has no effect without tlsCertFile: set both, or neither"
    )
    assert "expected true, ca" in fault(useTls="true", tlsVerify="no")


def test_secrets_appear_in_no_text() -> None:
    options = parse({**NEEDED, "accessKey": "me", "secretKey": "hidden", "securityToken": "hidden"})
    assert "hidden" not in repr(options) + str(options)
    for name in ("secretKeys", "password", "tlsKeyPassword", "sk"):
        assert "hidden" not in fault(**{name: "hidden"})


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("body BINARY, id BIGINT", r"column = 'id': is not a column of the sink: .drop\(\"id\"\)"),
        (
            "body BINARY, queue_id BIGINT",
            r"queue_id bigint.*withColumn\(\"queue_id\", col\(\"queue_id\"\).cast\(\"int\"\)\)",
        ),
        ("body BINARY, properties COUNTS", "map<string,string>"),
        ("body INT", "binary or string"),
        ("keys STRING", "column = 'body': is required"),
        ("body STRING, broker STRING", "requires a column queue_id"),
        ("body STRING, body STRING", "occurs twice"),
        ("body STRING, value STRING", r"withColumn\(\"body\", to_json\(\"value\"\)\)"),
    ],
)
def test_unsupported_columns_are_named_with_the_remedy(ddl: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_columns(schema(ddl), parse(NEEDED))


def test_a_topic_is_an_option_or_a_column() -> None:
    options = parse({"namesrv": "127.0.0.1:9876"})
    with pytest.raises(ConfigError, match="topic = '': is required"):
        check_columns(schema("body BINARY"), options)
    check_columns(schema("topic STRING, body BINARY, properties MAP"), options)
