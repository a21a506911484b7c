"""The messages of `apache.rocketmq.v2`, the protocol of RocketMQ 5 clients.

    apache/rocketmq/v2/*.proto   from apache/rocketmq-apis (Apache-2.0, licence at the head of each file), unchanged
    messaging.binpb              the same, compiled: a FileDescriptorSet. tests/unit/test_proxy_api.py prints the command

    api.Status(code=20000)                               a message, by its name
    api.Message.SystemProperties                         … and by the name of the message around it

The classes are built when they are first used, in a descriptor pool of this module: an official client in the same process has the
same messages in the default pool, which would refuse a second definition.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from ariane.extras import naming_extras

__all__ = ["PACKAGE", "SERVICE", "descriptor"]

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"


@cache
def _pool() -> Any:
    with naming_extras():
        from google.protobuf import descriptor_pb2, descriptor_pool

    compiled = descriptor_pb2.FileDescriptorSet.FromString((files(__name__) / "messaging.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in compiled.file:
        pool.Add(file)
    return pool


def descriptor(name: str) -> Any:
    """Return the descriptor of an enumeration or service of the package."""
    pool = _pool()
    return (
        pool.FindServiceByName(SERVICE) if name == "MessagingService" else pool.FindEnumTypeByName(f"{PACKAGE}.{name}")
    )


def __getattr__(name: str) -> Any:
    """Return the class of a message, as an attribute of this module."""
    if not name[:1].isupper():
        raise AttributeError(name)
    with naming_extras():
        from google.protobuf import message_factory

    try:
        message = _pool().FindMessageTypeByName(f"{PACKAGE}.{name}")
    except KeyError:
        raise AttributeError(name) from None
    kind = globals()[name] = message_factory.GetMessageClass(message)
    return kind
