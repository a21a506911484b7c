"""The messages of the gRPC port: compiled from the .proto files, in a pool of their own.

To compile them again: python tests/unit/test_proxy_api.py
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="the extra grpc is not installed")

from ariane.proxy import api
from ariane.proxy.conversion.client_settings import ClientKind
from ariane.proxy.conversion.grpc_messages import MESSAGE_TYPES
from ariane.proxy.conversion.grpc_statuses import StatusCode

DIRECTORY = Path(str(files(api)))
NATIVE_COPY = Path(__file__).resolve().parents[2] / "native" / "core" / "messaging.binpb"


def compiled(target: Path) -> bytes:
    grpc_tools = pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [f"-I{DIRECTORY}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={target}"]
    assert protoc.main(["protoc", *arguments, "apache/rocketmq/v2/service.proto"]) == 0
    return target.read_bytes()


def test_the_compiled_file_is_that_of_the_sources(tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    stored = (DIRECTORY / "messaging.binpb").read_bytes()
    assert FileDescriptorSet.FromString(stored) == FileDescriptorSet.FromString(compiled(tmp_path / "set"))


def test_the_native_kernels_have_the_same_messages() -> None:
    assert NATIVE_COPY.read_bytes() == (DIRECTORY / "messaging.binpb").read_bytes()


def test_messages_are_not_in_the_default_pool() -> None:
    from google.protobuf import descriptor_pool

    assert api.Message(body=b"x").SerializeToString()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("apache.rocketmq.v2.Message")


def test_an_unknown_message_is_an_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="NoSuchMessage"):
        _ = api.NoSuchMessage


@pytest.mark.parametrize(
    ("own", "name"),
    [
        (StatusCode.__members__, "Code"),
        ({kind.name: number for kind, number in MESSAGE_TYPES.items()}, "MessageType"),
        (ClientKind.__members__, "ClientType"),
    ],
)
def test_numbers_are_those_of_the_protocol(own: dict[str, int], name: str) -> None:
    values = {value.name: value.number for value in api.descriptor(name).values}
    assert dict(own).items() <= values.items()


if __name__ == "__main__":
    sys.exit(not NATIVE_COPY.write_bytes(compiled(DIRECTORY / "messaging.binpb")))
