"""Captures the golden bytes in this directory from real 4.9.4 peers: python tests/data/capture.py

Java name server, broker, clients and tools talk to each other through recording proxies; the name server's answers have
the broker's port replaced by its proxy's (of equal length), so that clients take that way too. Of each kind of frame the
first one is kept. README.md says what the files are.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import shutil
import socket
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ariane.protocol import command
from ariane.protocol.codes import code_name
from ariane.protocol.frame import FrameReader
from ariane.testing import java

HERE = Path(__file__).resolve().parent
BINARY = "-Drocketmq.serialize.type=ROCKETMQ"
PATHS = b"commitLogDiskRatio_"  # runtime information names directories of the machine that it was captured on
LONG_NAMES = "-Dorg.apache.rocketmq.client.sendSmartMsg=false"

Streams = list[tuple[str, bytearray, bytearray]]  # what it is between; bytes of the client, bytes of the server


class Proxy:
    """Forwards a port to another and keeps what passes."""

    def __init__(self, name: str, target: int, streams: Streams, rewrite: Callable[[bytes], bytes] = bytes) -> None:
        self._name, self._target, self._streams, self._rewrite = name, target, streams, rewrite
        self._listener = socket.create_server(("127.0.0.1", java.free_port()))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            stream = (self._name, bytearray(), bytearray())
            self._streams.append(stream)
            threading.Thread(target=pump, args=(client, server, stream[1], bytes), daemon=True).start()
            threading.Thread(target=pump, args=(server, client, stream[2], self._rewrite), daemon=True).start()


def pump(source: socket.socket, target: socket.socket, kept: bytearray, rewrite: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            kept += data
            target.sendall(rewrite(data))
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def recorded(home: Path, streams: Streams, form: str, properties: dict[str, str]) -> Iterator[str]:
    """A Java name server and broker behind proxies; the address that clients are to use."""
    jvm = [*java.TEST_HEAP, *([BINARY] if form == "binary" else [])]
    broker_port = java.free_port()
    to_broker = Proxy("broker", broker_port, streams)
    old, new = f"127.0.0.1:{broker_port}".encode(), to_broker.addr.encode()
    assert len(old) == len(new)
    with java.name_server(home / "ns", jvm_args=jvm) as name_server:
        port = int(name_server.addr.rpartition(":")[2])
        for_broker = Proxy("namesrv", port, streams)
        for_clients = Proxy("namesrv", port, streams, lambda data: data.replace(old, new))
        with java.broker(home / "b", for_broker.addr, port=broker_port, jvm_args=jvm, properties=properties):
            yield for_clients.addr


def talk(namesrv: str, jvm: list[str]) -> None:
    """Everything that clients and tools are to be recorded saying."""

    def run(program: str, *args: str, more: str = "") -> None:
        heap = [*java.TEST_HEAP, *jvm, *([more] if more else [])]
        try:
            java.run(program, [*args], jvm_args=heap)
        except RuntimeError as error:  # some of the commands are recorded because they fail
            print(str(error).splitlines()[0], file=sys.stderr)

    run("ariane.peers.Produce", namesrv, "T", "P", "6", "tags=TagA,TagB", "keys=K")
    run("ariane.peers.Produce", namesrv, "T", "P", "2", "keys=long", more=LONG_NAMES)
    run("ariane.peers.Produce", namesrv, "T", "P", "4", "batch=2", "keys=batch")
    run("ariane.peers.Produce", namesrv, "T", "P", "1", "size=9000", "keys=compressed")
    run("ariane.peers.PullAll", namesrv, "T")
    with java.start("ariane.peers.Consume", [namesrv, "T", "G", "TagA || TagB", "0", "40"], jvm_args=jvm) as first:
        next(first.events(time.monotonic() + 60))
        run("ariane.peers.Consume", namesrv, "T", "G", "TagA || TagB", "0", "4")  # a second member comes and goes
    run("ariane.peers.Consume", namesrv, "T", "Ordered", "*", "10", "40", "orderly")
    for tool in (
        ["updateTopic", "-c", "DefaultCluster", "-t", "Made"],
        ["deleteTopic", "-c", "DefaultCluster", "-t", "Made"],
        ["topicRoute", "-t", "none"],
        ["clusterList"],
        ["topicList"],
        ["updateKvConfig", "-s", "NS", "-k", "key", "-v", "value"],
        ["updateSubGroup", "-c", "DefaultCluster", "-g", "G"],
        ["consumerProgress", "-g", "G"],
        ["statsAll", "-t", "T"],
    ):
        run(java.ADMIN, *tool, "-n", namesrv)


def keep_frames(streams: Streams, form: str, label: str, index: list[dict[str, object]]) -> None:
    """Write the first frame of each kind of `form`."""
    wanted = 1 if form == "binary" else 0
    known = {entry["file"] for entry in index}
    for between, from_client, from_server in list(streams):
        asked: dict[tuple[str, int], command.Command] = {}
        for sender, data in (("client", from_client), ("server", from_server)):
            for frame in FrameReader().feed(bytes(data)):
                result = command.decode(frame)
                if not result.is_response:
                    asked[sender, result.opaque] = result
        for sender, data in (("client", from_client), ("server", from_server)):
            for frame in FrameReader().feed(bytes(data)):
                result = command.decode(frame)
                if frame.form != wanted:
                    continue
                request = (
                    asked.get(("server" if sender == "client" else "client", result.opaque))
                    if result.is_response
                    else result
                )
                if request is None:
                    continue
                kind = f"answer-{result.code}" if result.is_response else "one-way" if result.is_one_way else "request"
                name = f"{request.code:03d}-{kind}-{form}{label}.bin"
                raw = b"".join(
                    (
                        (4 + len(frame.header) + len(frame.body)).to_bytes(4, "big"),
                        (frame.form << 24 | len(frame.header)).to_bytes(4, "big"),
                        frame.header,
                        frame.body,
                    )
                )
                if name in known or len(raw) > 20_000 or PATHS in frame.body:
                    continue
                known.add(name)
                (HERE / "frames" / name).write_bytes(raw)
                index.append(
                    {"file": name, "code": request.code, "name": code_name(request.code), "kind": kind, "form": form,
                     "between": f"client and {between}", "sent_by": sender}
                )  # fmt: skip


def frames(index: list[dict[str, object]]) -> None:
    for form, properties in (("json", {}), ("binary", {}), ("json", {"compressedRegister": "true"})):
        streams: Streams = []
        with (
            tempfile.TemporaryDirectory() as directory,
            recorded(Path(directory), streams, form, properties) as namesrv,
        ):
            if not properties:
                talk(namesrv, [BINARY] if form == "binary" else [])
        keep_frames(streams, form, "-compressed" if properties else "", index)
        print(f"{form} {properties}: {len(index)} frames", file=sys.stderr)


def store_and_traces() -> None:
    """A small store, its messages, and trace bodies."""
    small = {
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "1000",
        "maxHashSlotNum": "64",
        "maxIndexNum": "256",
    }
    with tempfile.TemporaryDirectory() as directory, java.name_server(Path(directory) / "ns") as name_server:
        home = Path(directory) / "b"
        with java.broker(home, name_server.addr, properties=small):
            namesrv = name_server.addr
            java.run(
                "ariane.peers.Produce", [namesrv, "T", "P", "150", "tags=TagA,TagB", "keys=K", "size=900", "trace"]
            )
            java.run("ariane.peers.Produce", [namesrv, "T", "P", "40", "batch=4", "keys=batch"])
            java.run("ariane.peers.Produce", [namesrv, "T", "P", "3", "size=9000", "keys=compressed"])
            java.run("ariane.peers.Consume", [namesrv, "T", "G", "*", "193", "60", "trace"])
            messages = java.events(java.run("ariane.peers.PullAll", [namesrv, "T"]))
            traces = java.events(java.run("ariane.peers.PullAll", [namesrv, "RMQ_SYS_TRACE_TOPIC"]))
            time.sleep(7)  # until the consumer's offsets are saved
        (HERE / "store.json").write_text("".join(json.dumps(trace, sort_keys=True) + "\n" for trace in messages))
        with tarfile.open(HERE / "store.tar.gz", "w:gz") as archive:
            for path in sorted((home / "store").rglob("*")):
                if path.is_file() and path.name != "lock":
                    info = archive.gettarinfo(str(path), str(path.relative_to(home)))
                    info.uname = info.gname = ""
                    archive.addfile(info, io.BytesIO(path.read_bytes()))
    shutil.rmtree(HERE / "trace", ignore_errors=True)
    (HERE / "trace").mkdir()
    for number, trace in enumerate(traces):
        (HERE / "trace" / f"{number:02d}.bin").write_bytes(base64.b64decode(trace["body"]))


def main() -> None:
    if reason := java.available():
        raise SystemExit(reason)
    shutil.rmtree(HERE / "frames", ignore_errors=True)
    (HERE / "frames").mkdir()
    index: list[dict[str, object]] = []
    frames(index)
    index.sort(key=lambda entry: str(entry["file"]))
    (HERE / "frames" / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    store_and_traces()


if __name__ == "__main__":
    main()
