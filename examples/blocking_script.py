"""Script without asyncio: copies the lines of standard input to a topic, or the messages of a topic to standard output.

    ariane up                            # in another terminal: a name server and a broker
    python blocking_script.py send notes < notes.txt
    python blocking_script.py read notes

`read` waits for further messages until Ctrl-C. It commits what it has printed, so the next run continues there.
"""

from __future__ import annotations

import os
import sys

from ariane import Message, errors
from ariane.blocking import LitePullConsumer, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def send(topic: str) -> None:
    """Send each line of standard input as one message."""
    messages = [Message(topic=topic, body=line.rstrip("\n").encode()) for line in sys.stdin if line.strip()]
    with Producer(NAMESRV, "notes") as producer:
        # One request per batch of up to 4 MiB; a failure leaves the earlier batches stored.
        for result in producer.send_batches(messages):
            print("stored from offset", result.queue_offset, "of queue", result.queue.queue_id)
    print("sent", len(messages), "messages")


def read(topic: str) -> None:
    """Print messages until Ctrl-C."""
    with LitePullConsumer(NAMESRV, "notes-reader", {topic: "*"}, start="first", auto_commit=False) as consumer:
        while True:
            for message in consumer.poll(timeout=1):
                print(message.body.decode(), flush=True)
            consumer.commit()


def main(arguments: list[str]) -> int:
    commands = {"send": send, "read": read}
    if len(arguments) != 2 or arguments[0] not in commands:
        print("usage: blocking_script.py send|read TOPIC", file=sys.stderr)
        return 2
    try:
        commands[arguments[0]](arguments[1])
    except KeyboardInterrupt:
        return 0
    except errors.ArianeError as error:
        print(f"blocking_script.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
