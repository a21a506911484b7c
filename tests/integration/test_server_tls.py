"""Plain and encrypted connections on one port of a server: modes, versions, hostile handshakes, replaced certificates."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from typer.testing import CliRunner

from ariane.cli.main import app
from ariane.errors import ConnectionLost
from ariane.net.connection import Peer, Reply
from ariane.net.limits.connection_limits import ConnectionLimits
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.listening import connection_gate
from ariane.net.listening.connection_gate import ConnectionGate
from ariane.net.listening.server_tls import CertificateFiles, ServerTls, ServerTlsOptions
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.net.server import RemotingServer
from ariane.protocol import command as commands
from ariane.protocol.command import Command
from ariane.protocol.frame import FrameReader
from tls_files import TestAuthority, write_pair

ECHO = 105
LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: TestAuthority) -> CertificateFiles:
    return authority.files("server")


def trusting(authority: TestAuthority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.path))


def echo(command: Command, peer: Peer) -> Reply:
    return Reply(body=bytes(command.body))


@contextlib.asynccontextmanager
async def serving(options: ServerTlsOptions, **more: Any) -> AsyncIterator[RemotingServer]:
    tls = ServerTls(options)
    tls.load()
    async with RemotingServer({ECHO: echo}, "127.0.0.1", 0, gate=ConnectionGate(tls), **more) as server:
        yield server


def with_files(files: CertificateFiles, **more: Any) -> ServerTlsOptions:
    return ServerTlsOptions(is_test=False, files=files, **more)


async def ask(port: int, context: ssl.SSLContext | None, size: int = 10) -> int:
    """Return the size of the response to a request, over a new connection."""
    async with ConnectionPool(tls=context) as pool:
        response = await pool.request(f"127.0.0.1:{port}", ECHO, body=b"x" * size, timeout_ms=20_000)
        return len(response.body)


def frame(body: bytes = b"ping") -> bytes:
    return b"".join(commands.encode(ECHO, opaque=1, flag=0, body=body))


def read_until_closed(port: int, data: bytes) -> bytes:
    """Send bytes over a plain connection, and return what arrives until the server closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        received = b""
        with contextlib.suppress(ConnectionError):
            peer.sendall(data)
            while piece := peer.recv(65536):
                received += piece
        return received


@pytest.mark.parametrize("loop", LOOPS)
def test_one_port_serves_both_kinds_of_connections(
    loop: str, authority: TestAuthority, files: CertificateFiles
) -> None:
    async def play() -> None:
        async with serving(with_files(files)) as server:
            for size in (0, 10, 300_000):
                assert await ask(server.port, None, size) == size
                for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                    context = trusting(authority)
                    context.minimum_version = context.maximum_version = version
                    assert await ask(server.port, context, size) == size
            assert not len(server.gate.silent) and not len(server.gate.handshakes)  # type: ignore[union-attr]

    LOOPS[loop](play())


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_in_the_last_flight_of_the_handshake_are_served(
    loop: str, authority: TestAuthority, files: CertificateFiles
) -> None:
    """A client that sends requests with its Finished message, all in one write, gets all responses in order."""

    def client(port: int) -> list[int]:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    peer.sendall(outgoing.read())
                    incoming.write(peer.recv(65536))
            for size in (1, 20_000, 3):
                tls.write(frame(b"x" * size))
            peer.sendall(outgoing.read())
            reader, sizes = FrameReader(), []
            while len(sizes) < 3:
                incoming.write(peer.recv(65536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    while data := tls.read(65536):
                        sizes += [len(commands.decode(part).body) for part in reader.feed(data)]
            return sizes

    async def play() -> None:
        async with serving(with_files(files)) as server:
            assert await asyncio.to_thread(client, server.port) == [1, 20_000, 3]

    LOOPS[loop](play())


def test_a_mode_refuses_the_other_kind(
    authority: TestAuthority, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with serving(with_files(files, mode="enforcing")) as server:
            assert await ask(server.port, trusting(authority)) == 10
            assert await asyncio.to_thread(read_until_closed, server.port, frame()) == b""
        async with serving(ServerTlsOptions(mode="disabled")) as server:
            assert await ask(server.port, None) == 10
            with pytest.raises(ConnectionLost):
                await ask(server.port, trusting(authority))

    asyncio.run(play())
    assert "is not encrypted, and tls.server.mode is enforcing" in caplog.text
    assert "is encrypted, and tls.server.mode is disabled" in caplog.text


def test_the_test_mode_creates_a_certificate_for_the_first_client() -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def play() -> None:
        async with serving(ServerTlsOptions()) as server:
            assert await asyncio.gather(*(ask(server.port, context) for _ in range(5))) == [10] * 5

    asyncio.run(play())


def test_sessions_are_resumed(authority: TestAuthority, files: CertificateFiles) -> None:
    def client(port: int) -> list[bool]:
        context, session, reused = trusting(authority), None, []
        for _ in range(2):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as peer,
            ):
                peer.sendall(frame())
                assert peer.recv(65536)  # a ticket of TLS 1.3 arrives with the first data
                session = peer.session
                reused.append(bool(peer.session_reused))
        return reused

    async def play() -> None:
        async with serving(with_files(files)) as server:
            assert await asyncio.to_thread(client, server.port) == [False, True]

    asyncio.run(play())


def test_clients_are_verified(authority: TestAuthority, files: CertificateFiles) -> None:
    shown = authority.files("client")
    stranger = TestAuthority(Path(shown.cert).parent / "..").files("stranger")

    async def play() -> None:
        required = with_files(files, client_auth="require", verifies_clients=True)
        optional = with_files(files, client_auth="optional", verifies_clients=True)
        known, unknown = trusting(authority), trusting(authority)
        known.load_cert_chain(shown.cert, shown.key)
        unknown.load_cert_chain(stranger.cert, stranger.key)
        async with serving(required) as server:
            assert await ask(server.port, known) == 10
            for context in (unknown, trusting(authority)):
                with pytest.raises(ConnectionLost):
                    await ask(server.port, context)
        async with serving(optional) as server:
            assert await ask(server.port, trusting(authority)) == 10
            with pytest.raises(ConnectionLost):
                await ask(server.port, unknown)

    asyncio.run(play())


# --- hostile peers ---

CLIENT_HELLO_HEAD = bytes.fromhex("1603010200010001fc0303")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "data",
    [
        b"\x16" + b"garbage" * 50_000,
        bytes.fromhex("1603014801") + b"x" * 20_000,  # a record larger than 16 KB
        bytes.fromhex("1603010004ff000000"),  # an unknown message
    ],
    ids=["garbage", "oversize record", "unknown message"],
)
def test_nonsense_after_the_first_byte_ends_the_connection(loop: str, data: bytes, files: CertificateFiles) -> None:
    async def play() -> None:
        async with serving(with_files(files)) as server:
            answer = await asyncio.to_thread(read_until_closed, server.port, data)
            assert answer[:1] in (b"", b"\x15")  # nothing but an alert
            assert await ask(server.port, None) == 10
            assert not len(server.gate.handshakes)  # type: ignore[union-attr]

    LOOPS[loop](play())


@pytest.mark.parametrize("loop", LOOPS)
def test_handshakes_and_silent_connections_end_in_time(
    loop: str, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_gate, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(connection_gate, "FIRST_BYTE_S", 0.2)

    async def play() -> None:
        async with serving(with_files(files)) as server:
            for data in (b"", b"\x16", CLIENT_HELLO_HEAD):
                assert await asyncio.to_thread(read_until_closed, server.port, data) == b""
            # A peer that closes in the middle of its handshake.
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                peer.sendall(CLIENT_HELLO_HEAD)
                await asyncio.sleep(0.05)
            assert await ask(server.port, None) == 10
            await until(lambda: not len(server.gate.handshakes) and not len(server.gate.silent))  # type: ignore[union-attr]

    LOOPS[loop](play())
    assert "no data arrived within 0.2 s" in caplog.text
    assert "exception was never retrieved" not in caplog.text


async def until(is_reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_reached():
            await asyncio.sleep(0.01)


def test_a_thousand_unfinished_connections_do_not_delay_a_ping(
    files: CertificateFiles, authority: TestAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_gate, "HANDSHAKE_LIMITS", ConnectionLimits(total=400, per_address=200))

    async def play() -> None:
        async with serving(with_files(files)) as server:
            gate = server.gate
            assert gate is not None
            peers = []
            for number in range(1000):
                peer = socket.socket()
                peer.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    peer.connect(("127.0.0.1", server.port))
                peers.append(peer)
                await asyncio.sleep(0)
                if number % 2:
                    await asyncio.get_running_loop().sock_sendall(peer, CLIENT_HELLO_HEAD)
            await until(lambda: len(gate.silent) == 500 and len(gate.handshakes) == 200)
            began = time.process_time()
            assert await ask(server.port, None) == 10
            assert await ask(server.port, trusting(authority)) == 10
            assert time.process_time() - began < 1
            for peer in peers:
                peer.close()

    asyncio.run(play())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl not found on the PATH: it requests the handshake")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_renegotiation_ends_the_connection_without_a_second_handshake(loop: str, files: CertificateFiles) -> None:
    async def renegotiate(port: int) -> str:
        command = ["openssl", "s_client", "-tls1_2", "-msg", "-connect", f"127.0.0.1:{port}"]
        pipe = asyncio.subprocess.PIPE
        client = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        try:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(b"R\n")  # read after the handshake
            async with asyncio.timeout(20):
                return (await client.stdout.read()).decode("utf-8", "replace")
        finally:
            if client.returncode is None:
                client.kill()
            await client.wait()

    async def play() -> None:
        async with serving(with_files(files)) as server:
            messages = await renegotiate(server.port)
            _, is_requested, after = messages.partition("RENEGOTIATING")
            assert is_requested and "ServerHello" not in after and "no_renegotiation" in after
            await until(lambda: server.connection_count == 0)

    LOOPS[loop](play())


def test_tls_1_1_is_refused(files: CertificateFiles, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1

    async def play() -> None:
        async with serving(with_files(files)) as server:
            with pytest.raises(ConnectionLost):
                await ask(server.port, context)

    asyncio.run(play())
    assert "UNSUPPORTED_PROTOCOL" in caplog.text


def test_unread_responses_of_encrypted_connections_are_bounded(
    files: CertificateFiles, authority: TestAuthority
) -> None:
    """A client that reads nothing is not served any more, and one that reads later gets everything."""

    async def play() -> None:
        served = 0

        def count(command: Command, peer: Peer) -> Reply:
            nonlocal served
            served += 1
            return Reply(body=bytes(100_000))

        tls = ServerTls(with_files(files))
        tls.load()
        limits = ServerLimits(connection_unread_max=200_000)
        async with RemotingServer({ECHO: count}, "127.0.0.1", 0, limits=limits, gate=ConnectionGate(tls)) as server:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=trusting(authority), limit=1024
            )
            requests = 300
            for number in range(requests):
                writer.writelines(commands.encode(ECHO, opaque=number, flag=0))
            await asyncio.sleep(0.5)
            assert served < requests
            frames, responses = FrameReader(), 0
            while responses < requests:
                responses += len(list(frames.feed(await reader.read(1 << 20))))
            assert served == requests
            writer.close()

    asyncio.run(play())


# --- replaced files ---


def test_replaced_files_are_used_for_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    authority = TestAuthority(tmp_path)
    files = authority.files("server", days=10)
    cert, key = Path(files.cert), Path(files.key)

    async def play() -> None:
        tls = ServerTls(with_files(files, mode="enforcing"))
        tls.load()
        async with RemotingServer({ECHO: echo}, "127.0.0.1", 0, gate=ConnectionGate(tls)) as server:

            async def reload() -> None:
                await tls.reload_if_changed()
                await tls.reload_if_changed()

            async def days() -> int:
                _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting(authority))
                shown = writer.get_extra_info("ssl_object").getpeercert()["notAfter"]
                writer.close()
                return round((ssl.cert_time_to_seconds(shown) - time.time()) / 86_400)

            async with ConnectionPool(tls=trusting(authority)) as pool:
                established = f"127.0.0.1:{server.port}"

                async def is_served() -> bool:
                    return bool((await pool.request(established, ECHO, body=b"x")).body)

                assert await is_served() and await days() == 10
                write_pair(authority.issue("server", days=20), cert, key)
                await reload()
                assert await is_served() and await days() == 20 == round(tls.days_left() or 0)
                # Half of a pair, no file, and an expired certificate do not replace what works.
                former = key.read_bytes()
                for damage in (
                    lambda: key.write_bytes(authority.issue("other").key),
                    key.unlink,
                    lambda: write_pair(authority.issue("server", days=-1), cert, key),
                ):
                    damage()
                    await reload()
                    assert await is_served() and await days() == 20
                write_pair(authority.issue("server", days=30), cert, key)
                assert key.read_bytes() != former
                await reload()
                assert await is_served() and await days() == 30

    asyncio.run(play())
    for text in ("is not the key of", "cannot be read (No such file or directory)", "expired on"):
        assert "Keeping the former certificate for new connections: tls.server." in caplog.text and text in caplog.text
    assert "New connections use the certificate" in caplog.text


# --- commands ---


def test_openssl_and_our_command_verify_a_server(
    files: CertificateFiles, authority: TestAuthority, tmp_path: Path
) -> None:
    stranger = TestAuthority(tmp_path)

    def s_client(port: int, ca: Path) -> tuple[int, str]:
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", str(ca), "-verify_return_error"]
        done = subprocess.run([*command, "-brief"], input=b"", capture_output=True, check=False, timeout=60)
        return done.returncode, (done.stdout + done.stderr).decode()

    def ours(command: str, port: int, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["tls", command, f"127.0.0.1:{port}", *arguments])
        return result.exit_code, result.stdout + str(result.exception or "")

    def check(port: int) -> None:
        if shutil.which("openssl"):
            status, text = s_client(port, authority.path)
            assert status == 0 and "Protocol version: TLSv1.3" in text and "Verification: OK" in text
            assert s_client(port, stranger.path)[0] != 0
        status, text = ours("check", port, "--tls-ca-file", str(authority.path))
        assert f"127.0.0.1:{port} is verified: TLSv1.3" in text
        assert status == 1 and "expires in 1 days" in text
        status, text = ours("check", port, "--tls-ca-file", str(stranger.path))
        assert status == 1 and "is not accepted: unable to get local issuer certificate" in text
        assert "issuer      CN=authority" in ours("show", port)[1]

    async def play() -> None:
        async with serving(with_files(files)) as server:
            await asyncio.to_thread(check, server.port)

    asyncio.run(play())
