"""The alert service: files, notifications, retries; web hooks and e-mail against servers on loopback."""

from __future__ import annotations

import asyncio
import errno
import json
import smtplib
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ariane.console.alerts import delivery as delivery_module
from ariane.console.alerts.alert_files import AlertFiles
from ariane.console.alerts.alert_rules import AlertCondition, AlertMetric, AlertRule, Severity
from ariane.console.alerts.alert_service import AlertService
from ariane.console.alerts.channels import (
    ALERTS_PER_MESSAGE_MAX,
    AlertChannel,
    DeliveryFailed,
    MailSecurity,
    MailTarget,
    Notification,
    WebHookTarget,
    check_channel,
    masked_url,
)
from ariane.console.alerts.delivery import Notifier
from ariane.console.alerts.mail import mail_message, send_mail
from ariane.console.alerts.silences import AlertSilence
from ariane.console.alerts.web_hook import send_web_hook
from ariane.console.live.live_snapshot import GroupRow, LiveSnapshot
from ariane.errors import ConfigError, NotFound
from ariane.testing.clock import EPOCH_MS, FakeClock

RULE = AlertRule(
    id="lag", name="High lag", metric=AlertMetric.GROUP_LAG, condition=AlertCondition.ABOVE, threshold=100,
    severity=Severity.CRITICAL,
)  # fmt: skip
HOOK = AlertChannel(id="hook", name="Chat", target=WebHookTarget(url="http://127.0.0.1:1/secret"))


class FakeLive:
    """A cluster whose groups have the lags that a test sets."""

    def __init__(self) -> None:
        self.lags: dict[str, int | None] = {}
        self.as_of_ms = 0

    async def snapshot(self) -> LiveSnapshot:
        self.as_of_ms += 1
        groups = tuple(GroupRow(group=group, lag=lag) for group, lag in sorted(self.lags.items()))
        return LiveSnapshot(as_of_ms=self.as_of_ms, base_as_of_ms=1, groups=groups)


class FakeNotifier(Notifier):
    """Remembers what it sends, and fails as often as a test says."""

    def __init__(self) -> None:
        self.sent: list[Notification] = []
        self.failures: list[DeliveryFailed] = []

    async def send(self, channel: AlertChannel, notification: Notification) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append(notification)

    @property
    def log(self) -> list[tuple[str, bool]]:
        return [(change.state.subject, change.is_firing) for message in self.sent for change in message.transitions]


class World:
    """A service with everything around it replaced."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.clock = FakeClock(is_auto=True)
        self.live = FakeLive()
        self.notifier = FakeNotifier()
        self.service = self.restart()

    def restart(self) -> AlertService:
        self.service = AlertService(
            self.data_dir, live=self.live, cluster="ns:9876", clock=self.clock, notifier=self.notifier
        )
        return self.service

    async def step(self, **lags: int | None) -> None:
        """Evaluate a snapshot with these lags and deliver what follows from it."""
        self.live.lags.update(lags)
        self.service.evaluate(await self.live.snapshot())
        for _ in range(50):  # deliveries are tasks that only wait for the fake clock
            await asyncio.sleep(0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for rule in world.service.settings.rules:
        world.service.delete_rule(rule.id)
    world.service.save_rule(RULE)
    world.service.save_channel(HOOK)
    return world


def test_each_transition_is_notified_once(world: World) -> None:
    async def run() -> None:
        await world.step(billing=500, orders=1)
        await world.step(billing=600)
        world.restart()
        await world.step(billing=700)
        await world.step(billing=0)

    asyncio.run(run())
    assert world.notifier.log == [("billing", True), ("billing", False)]
    assert [change.is_firing for change in world.service.history()] == [False, True]
    assert [change.is_firing for change in world.restart().history()] == [False, True]


def test_alerts_of_one_snapshot_are_one_message_of_bounded_size(world: World) -> None:
    asyncio.run(world.step(**{f"g{number}": 500 for number in range(ALERTS_PER_MESSAGE_MAX + 5)}))
    (message,) = world.notifier.sent
    assert (len(message.transitions), message.omitted) == (ALERTS_PER_MESSAGE_MAX, 5)
    assert len(world.service.firing()) == ALERTS_PER_MESSAGE_MAX + 5


def test_transient_failures_are_retried_and_permanent_ones_are_not(world: World) -> None:
    async def run() -> None:
        world.notifier.failures = [DeliveryFailed("busy", is_transient=True)] * 2
        await world.step(billing=500)
        assert world.notifier.log == [("billing", True)]
        world.notifier.failures = [DeliveryFailed("not found", is_transient=False)]
        await world.step(billing=0)

    asyncio.run(run())
    assert world.notifier.log == [("billing", True)]
    status = world.service.channel_status("hook")
    assert (status.sent, status.failed, status.error, status.waiting) == (1, 1, "not found", 0)
    assert status.sent_ms == EPOCH_MS + 35_000, "after 5 s and 30 s"


def test_attempts_end(world: World) -> None:
    world.notifier.failures = [DeliveryFailed("busy", is_transient=True)] * 5
    asyncio.run(world.step(billing=500))
    assert world.notifier.sent == []
    assert world.service.channel_status("hook").failed == 1


def test_the_queue_of_a_channel_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "QUEUE_MAX", 3)

    async def run() -> None:
        for number in range(6):  # without a turn of the event loop in between
            world.live.lags = {f"g{number}": 500}
            world.service.evaluate(await world.live.snapshot())
        status = world.service.channel_status("hook")
        assert (status.waiting, status.dropped) == (3, 3)

    asyncio.run(run())


def test_an_unexpected_error_does_not_end_a_channel(world: World) -> None:
    world.notifier.failures = [UnicodeError("secret"), AttributeError("secret")]  # type: ignore[list-item]

    async def run() -> None:
        await world.step(billing=500)
        await world.step(orders=500)
        await world.step(search=500)

    asyncio.run(run())
    status = world.service.channel_status("hook")
    assert (status.failed, status.sent, status.waiting) == (2, 1, 0)
    assert "unexpected AttributeError" in status.error
    assert "secret" not in status.error


def test_alerts_are_notified_although_the_disk_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AlertFiles, "write_state", fail)

    async def run() -> None:
        with pytest.raises(OSError, match="No space"):
            await world.step(billing=500)
        await world.step(billing=500)

    asyncio.run(run())
    assert world.notifier.log == [("billing", True)]


def test_channels_receive_what_is_urgent_enough(world: World) -> None:
    world.service.save_rule(msgspec.structs.replace(RULE, severity=Severity.WARNING))
    world.service.save_channel(msgspec.structs.replace(HOOK, min_severity=Severity.CRITICAL))
    asyncio.run(world.step(billing=500))
    assert world.notifier.sent == []
    assert [state.subject for state in world.service.firing()] == ["billing"]


def test_silences(world: World) -> None:
    silence = AlertSilence(id="s", rule_id="", pattern="b*", until_ms=world.clock.now_ms() + 60_000)
    world.service.save_silence(silence)

    async def run() -> None:
        await world.step(billing=500, orders=500)
        assert world.notifier.log == [("orders", True)]
        assert [world.service.is_silent(state) for state in world.service.firing()] == [False, True]
        world.service.end_silence("s")
        await world.step()

    asyncio.run(run())
    assert world.notifier.log == [("orders", True), ("billing", True)]


def test_closing_an_alert(world: World) -> None:
    async def run() -> None:
        await world.step(billing=500)
        world.service.close_alert("lag", "billing")
        with pytest.raises(NotFound):
            world.service.close_alert("lag", "billing")
        await world.step()

    asyncio.run(run())
    assert world.notifier.log == [("billing", True), ("billing", False), ("billing", True)]
    assert world.service.history()[1].reason == "it was closed"


def test_files_are_private_and_hold_what_was_saved(world: World, tmp_path: Path) -> None:
    asyncio.run(world.step(billing=500))
    for name in ("alert_rules.json", "alert_state.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    restarted = world.restart()
    assert restarted.settings.rules == (RULE,)
    assert restarted.settings.channels == (HOOK,)
    assert [state.subject for state in restarted.firing()] == ["billing"]


def test_a_new_console_has_the_default_rules(tmp_path: Path) -> None:
    service = World(tmp_path).service
    assert len(service.settings.rules) == 13
    service.delete_rule("default-age")
    assert len(World(tmp_path).service.settings.rules) == 12


def test_the_task_evaluates_and_survives_errors(world: World) -> None:
    class BrokenLive(FakeLive):
        async def snapshot(self) -> LiveSnapshot:
            if self.as_of_ms == 1:
                self.as_of_ms += 1
                raise RuntimeError("broken")
            return await super().snapshot()

    world.live = BrokenLive()
    world.live.lags = {"billing": 500}
    world.clock = FakeClock()

    async def run() -> None:
        async with world.restart() as service:
            for _ in range(3):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                world.clock.advance(10)
            assert service.as_of_ms == 3

    asyncio.run(run())
    assert world.service.error == ""


def test_unknown_ids() -> None:
    with pytest.raises(NotFound, match="no alert rule x"):
        World(Path("/nonexistent")).service.delete_rule("x")


# --- channels ---


@pytest.mark.parametrize(
    "url",
    [
        "", "ftp://host/x", "http://", "http://user:password@host/", "http://host/a b", "http://host/\r\nX: 1",
        "http://host:99999/", "http://[x/", "javascript:alert(1)", "http://höst/",
        "https://hooks..example.com", f"https://{'x' * 64}.example.com",
    ],
)  # fmt: skip
def test_invalid_web_hooks(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_channel(msgspec.structs.replace(HOOK, target=WebHookTarget(url=url)))
    assert "password" not in str(raised.value).replace("user and password", "")


def test_the_authorization_is_never_sent_in_clear_text_to_another_machine() -> None:
    for host in ("hooks.example.com", "10.0.0.1"):
        with pytest.raises(ConfigError, match="clear text"):
            check_channel(
                msgspec.structs.replace(HOOK, target=WebHookTarget(url=f"http://{host}/", authorization="Bearer t"))
            )
    for url in ("https://hooks.example.com/", "http://127.0.0.1:80/", "http://[::1]/"):
        check_channel(msgspec.structs.replace(HOOK, target=WebHookTarget(url=url, authorization="Bearer t")))


def mail(**values: Any) -> MailTarget:
    return MailTarget(
        **{
            "host": "mail.example.com",
            "port": 587,
            "sender": "a@example.com",
            "recipients": ("b@example.com",),
            **values,
        }
    )


@pytest.mark.parametrize(
    "values",
    [
        {"host": "a b"}, {"port": 0}, {"sender": "x"}, {"recipients": ()}, {"recipients": ("b@example.com\r\nBcc: c@d",)},
        {"recipients": ("b@example.com",) * 21}, {"user": "u", "security": MailSecurity.NONE},
        {"host": "mail..example.com"}, {"user": "u", "password": "pässword"}, {"user": "ü"}, {"sender": "a@["},
        {"recipients": ("ü@example.com",)}, {"recipients": ("a@ü.de",)}, {"sender": "a(@example.com"},
    ],
)  # fmt: skip
def test_invalid_mail_targets(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_channel(msgspec.structs.replace(HOOK, target=mail(**values)))


def test_usual_mail_targets_are_valid() -> None:
    check_channel(
        msgspec.structs.replace(
            HOOK, target=mail(host="10.0.0.1", sender="o'hara+alerts@[10.0.0.1]", user="u", password="p #")
        )
    )


def test_secrets_are_masked() -> None:
    assert masked_url("https://hooks.example.com/services/T0/B0/x?y") == "https://hooks.example.com/…"
    assert masked_url("https://hooks.example.com:8443") == "https://hooks.example.com:8443"
    assert "secret" not in repr(HOOK)
    assert "secret" not in repr(mail(password="secret"))


def test_mails_name_the_alert_and_encode_headers(world: World) -> None:
    asyncio.run(world.step(**{"gröup": 500}))
    message = mail_message(mail(), world.notifier.sent[0])
    assert message["Subject"] == "[critical] High lag: gröup (ns:9876)"
    assert "gröup".encode() not in bytes(message).partition(b"\n\n")[0]
    assert "[CRITICAL] High lag: group gröup" in message.get_content()


# --- against servers on loopback ---

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handle: Handle) -> AsyncIterator[int]:
    """Yield the port of a server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1")
    async with listener:
        yield listener.sockets[0].getsockname()[1]


async def post_to(response: bytes, **target: str) -> tuple[str, dict[str, Any]]:
    """Send a test notification to a server that answers `response`; return the head and the document of the request."""
    received: list[tuple[str, dict[str, Any]]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(next(line for line in head.splitlines() if line.startswith("Content-Length")).split(":")[1])
        received.append((head, json.loads(await reader.readexactly(length))))
        writer.write(response)
        await writer.drain()

    async with server(handle) as port:
        url = f"http://127.0.0.1:{port}/hook?token=1"
        await send_web_hook(
            WebHookTarget(url=url, **target), Notification(cluster="ns:9876", transitions=(), is_test=True)
        )
    return received[0]


def test_web_hooks_receive_json() -> None:
    head, document = asyncio.run(post_to(b"HTTP/1.1 204 No Content\r\n\r\n", authorization="Bearer t"))
    assert head.startswith("POST /hook?token=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "Authorization: Bearer t\r\n" in head
    assert (document["isTest"], document["cluster"], document["alerts"]) == (True, "ns:9876", [])
    assert "test" in document["text"]


@pytest.mark.parametrize(
    ("response", "reason", "is_transient"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n", "a redirect", False),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answered 404", False),
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\n", "answered 429", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "answered 503", True),
        (b"SSH-2.0-x\r\n", "not HTTP", False),
        (b"x" * 10_000, "not HTTP", False),
        (b"", "closed the connection", True),
    ],
)
def test_web_hooks_that_fail(response: bytes, reason: str, is_transient: bool) -> None:
    with pytest.raises(DeliveryFailed, match=reason) as raised:
        asyncio.run(post_to(response))
    assert raised.value.is_transient is is_transient
    assert "token" not in str(raised.value)


def test_a_web_hook_that_never_answers_ends_at_its_time_limit() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with server(silent) as port:
            target = WebHookTarget(url=f"http://127.0.0.1:{port}/")
            await send_web_hook(target, Notification(cluster="c", transitions=()), timeout_s=0.05)

    with pytest.raises(DeliveryFailed, match="no response"):
        asyncio.run(run())


def test_link_local_addresses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    class Transport:
        def abort(self) -> None:
            sent.append("aborted")

    class Writer:
        transport = Transport()

        def get_extra_info(self, name: str) -> tuple[str, int]:
            return ("::ffff:169.254.169.254", 80)

        def write(self, data: bytes) -> None:
            sent.append("written")

    async def connect(*_: object, **__: object) -> tuple[object, Writer]:
        return None, Writer()

    monkeypatch.setattr(asyncio, "open_connection", connect)
    with pytest.raises(DeliveryFailed, match="link-local"):
        asyncio.run(
            send_web_hook(WebHookTarget(url="http://metadata.example/"), Notification(cluster="c", transitions=()))
        )
    assert sent == ["aborted"]


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1%eth0"])
def test_link_local_mail_servers_are_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    lines: list[str] = []

    class Socket:
        def getpeername(self) -> tuple[str, int]:
            return (address, 25)

    class Connection(smtplib.SMTP):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()
            self.sock = Socket()  # type: ignore[assignment]

        def docmd(self, command: str, args: str = "") -> tuple[int, bytes]:
            lines.append(command)
            return 221, b""

        def close(self) -> None:
            lines.append("closed")

    monkeypatch.setattr(smtplib, "SMTP", Connection)
    with pytest.raises(DeliveryFailed, match="link-local") as raised:
        asyncio.run(send_mail(mail(security=MailSecurity.NONE), Notification(cluster="c", transitions=())))
    assert not raised.value.is_transient
    assert lines == ["QUIT", "closed"]


def test_names_that_cannot_be_looked_up_are_permanent_errors() -> None:
    empty = Notification(cluster="c", transitions=())
    for send in (
        send_web_hook(WebHookTarget(url="https://hooks..example.com"), empty), send_mail(mail(host="mail..x"), empty),
    ):  # fmt: skip
        with pytest.raises(DeliveryFailed) as raised:
            asyncio.run(send)
        assert not raised.value.is_transient


async def mail_to(replies: dict[str, str], **values: Any) -> list[str]:
    """Send a test notification to a mail server; return the lines that it received."""
    lines: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            lines.append(line)
            command = line.split()[0].upper()
            usual = {"EHLO": "250 mail", "DATA": "354 go on", "QUIT": "221 bye"}.get(command, "250 ok")
            reply = replies.get(command, usual)
            writer.write(f"{reply}\r\n".encode())
            if reply.startswith("354"):
                lines.extend((await reader.readuntil(b"\r\n.\r\n")).decode().splitlines())
                writer.write(b"250 queued\r\n")
            await writer.drain()

    async with server(handle) as port:
        await send_mail(
            mail(host="127.0.0.1", port=port, **values),
            Notification(cluster="ns:9876", transitions=(), is_test=True),
            timeout_s=5,
        )
    return lines


def test_mail_is_delivered() -> None:
    lines = asyncio.run(mail_to({}, security=MailSecurity.NONE))
    assert any(line.lower().startswith("mail from:<a@example.com>") for line in lines)
    assert any(line.lower().startswith("rcpt to:<b@example.com>") for line in lines)
    assert "Subject: Test of the alerts of ns:9876" in lines


@pytest.mark.parametrize(
    ("replies", "security", "reason", "is_transient"),
    [
        ({}, MailSecurity.STARTTLS, "STARTTLS", False),
        ({"RCPT": "550 no such user"}, MailSecurity.NONE, "refused b@example.com", False),
        ({"MAIL": "451 try later"}, MailSecurity.NONE, "451 try later", True),
        ({"DATA": "554 spam"}, MailSecurity.NONE, "554 spam", False),
    ],
)
def test_mail_that_is_refused(replies: dict[str, str], security: MailSecurity, reason: str, is_transient: bool) -> None:
    with pytest.raises(DeliveryFailed, match=reason) as raised:
        asyncio.run(mail_to(replies, security=security))
    assert raised.value.is_transient is is_transient
