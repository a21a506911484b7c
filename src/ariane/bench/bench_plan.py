"""What a benchmark does: the plan of the whole run, and the part of each client process. Values that travel as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from ariane.client.instance.settings import ClientSettings, access_settings
from ariane.net.tls import Verify
from ariane.protocol.signing import Credentials


class BenchMode(StrEnum):
    """What is measured."""

    SEND = "send"
    CONSUME = "consume"
    BOTH = "both"
    REQUEST = "request"


class SendMethod(StrEnum):
    """How messages are sent."""

    SYNC = "sync"  # one after another: each waits for the response of the one before
    ASYNC = "async"  # pipelined: `in_flight` sends wait for responses at any time
    BATCH = "batch"  # pipelined batches of `batch` messages
    ONE_WAY = "one-way"  # without responses


class Role(StrEnum):
    """What a client process does."""

    SEND = "send"
    CONSUME = "consume"
    REQUEST = "request"
    REPLY = "reply"


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark."""

    mode: BenchMode  # what is measured
    namesrv: str  # name server addresses
    topic: str  # topic to send to and to consume
    group: str  # consumer group of consumers and repliers
    run_id: str  # sixteen hexadecimal digits that identify this run in the bodies of its messages
    messages: int = 100_000  # messages over all clients, warm-up included
    warm_up: int = 0  # number of the first messages, over all clients, that are sent or consumed but not measured
    size: int = 128  # size of the body in bytes
    method: SendMethod = SendMethod.ASYNC  # how senders send
    in_flight: int = 256  # sends or requests of one client that wait for responses at any time
    batch: int = 32  # messages per batch
    rate: float | None = None  # messages per second over all clients; None: as fast as possible
    clients: int = 1  # number of senders, requesters, or (mode consume) consumers
    consumers: int = 1  # number of consumers (mode both) or repliers (mode request)
    access_key: str = ""  # account for brokers with access control; empty: none
    secret_key: str = ""  # its secret key
    use_tls: bool = False  # whether connections are encrypted
    tls_verify: Verify = "true"  # what of the server's certificate is checked
    tls_ca_file: str = ""  # PEM file of trusted authorities
    tls_cert_file: str = ""  # PEM file of the client certificate
    tls_key_file: str = ""  # PEM file of its key
    tls_key_password_file: str = ""  # file with the password of that key

    def __repr__(self) -> str:
        return f"BenchPlan({self.mode!r}, {self.topic!r}, {self.run_id!r}, ...)"  # without the secret key

    def client_settings(self) -> ClientSettings:
        """Return the account and TLS as settings of a client instance."""
        account = Credentials(self.access_key, self.secret_key) if self.access_key else None
        return access_settings(account, self)

    @property
    def has_stamps(self) -> bool:
        """Whether bodies identify the run, the sender and the time of sending: in mode both, where consumers measure."""
        return self.mode is BenchMode.BOTH

    def workers(self) -> Iterator[WorkerPlan]:
        """Yield the parts of the client processes: first those that receive, which have to be ready before the others start."""
        receiving, sending = {
            BenchMode.SEND: (None, Role.SEND),
            BenchMode.CONSUME: (Role.CONSUME, None),
            BenchMode.BOTH: (Role.CONSUME, Role.SEND),
            BenchMode.REQUEST: (Role.REPLY, Role.REQUEST),
        }[self.mode]
        if receiving is not None:
            count = self.clients if sending is None else self.consumers
            for number in range(count):
                yield WorkerPlan(plan=self, role=receiving, number=number, warm_up=share(self.warm_up, number, count))
        if sending is not None:
            for number in range(self.clients):
                yield WorkerPlan(
                    plan=self,
                    role=sending,
                    number=number,
                    messages=share(self.messages, number, self.clients),
                    warm_up=share(self.warm_up, number, self.clients),
                    rate=None if self.rate is None else self.rate / self.clients,
                )


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one client process."""

    plan: BenchPlan  # the whole benchmark
    role: Role  # what this client does
    number: int  # number of the client among those of its role, from 0
    messages: int = 0  # messages to send, warm-up included
    warm_up: int = 0  # the first of them, which are not measured. For mode consume: the first that this client receives
    rate: float | None = None  # messages per second of this client


def share(total: int, number: int, count: int) -> int:
    """Return the part of `total` of one of `count` clients; the parts add up to the total."""
    return total * (number + 1) // count - total * number // count
