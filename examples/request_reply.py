"""Request and reply: a service that answers, and a client that waits for the answer.

    ariane up                            # in another terminal: a name server and a broker
    python request_reply.py serve        # until Ctrl-C
    python request_reply.py ask 17 25

The service squares numbers. Several copies of it share the questions, because they are members of one consumer group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from ariane import Admin, Producer, PushConsumer, ReceivedMessage, errors

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "squares"


async def serve() -> None:
    """Answer questions until Ctrl-C."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await create_topic()

    async with Producer(NAMESRV, "calculator") as responder:

        async def answer(messages: list[ReceivedMessage]) -> None:
            for question in messages:
                try:
                    text = str(int(question.body) ** 2)
                except ValueError:
                    text = f"not a whole number: {question.body!r}"
                try:
                    await responder.reply(question, text.encode())
                except errors.ReplyError as error:
                    # The client does not wait any more. To raise would answer again, in vain.
                    print("no one waits for the answer:", error, flush=True)

        async with PushConsumer(NAMESRV, "calculator", {TOPIC: "*"}, answer):
            print("ready", flush=True)
            await stopped.wait()


async def ask(numbers: list[str]) -> int:
    """Print the square of each number."""
    async with Producer(NAMESRV, "pupils") as producer:
        requests = [producer.request(TOPIC, number.encode(), timeout=5) for number in numbers]
        try:
            replies = await asyncio.gather(*requests)
        except errors.RequestTimeout as error:
            print(f"no answer: {error}", file=sys.stderr)
            return 1
    for number, reply in zip(numbers, replies, strict=True):
        print(number, reply.body.decode())
    return 0


async def create_topic() -> None:
    """Create the topic before the service joins its group: a consumer that finds no topic looks for it every 30 s only."""
    async with Admin(NAMESRV) as admin:
        if TOPIC not in await admin.list_topics():
            await admin.create_topic(TOPIC, queues=4)


def main(arguments: list[str]) -> int:
    if arguments == ["serve"]:
        asyncio.run(serve())
        return 0
    if arguments[:1] == ["ask"] and arguments[1:]:
        try:
            return asyncio.run(ask(arguments[1:]))
        except KeyboardInterrupt:
            return 130
    print("usage: request_reply.py serve | ask NUMBER...", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
