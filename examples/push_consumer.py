"""Push consumer: a listener with retries and dead letters.

    ariane up                            # in another terminal: a name server and a broker
    python push_consumer.py
    python order_service.py              # in a third terminal: sends the orders

Returning from the listener acknowledges a message. A message that raises is delivered again after 10 s, 30 s, 1 min, …; after
`max_reconsume_times` redeliveries it becomes a dead letter:

    ariane dead-letter list stock
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal

from ariane import ConsumerSettings, PushConsumer, ReceivedMessage, ReconsumeLater

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

processed: set[str] = set()  # a service uses a table of its database


async def on_orders(messages: list[ReceivedMessage]) -> None:
    """Reserve the goods of an order."""
    for message in messages:  # one, unless `consume_batch_max` says otherwise
        if message.message_id in processed:  # delivery is at least once
            continue
        try:
            order = json.loads(message.body)
            order_id, step = order["order"], order["step"]
        except (ValueError, TypeError, KeyError) as error:
            # No redelivery can help: a dead letter at once.
            print("dead letter", message.message_id, flush=True)
            raise ReconsumeLater(f"invalid order: {error!r}", delay_level=-1) from error
        if message.reconsume_times == 0 and order.get("amount") == 200:
            # A failure that passes. Level 1 is 1 s; without a level the broker chooses 10 s, 30 s, 1 min, …
            print("retry", order_id, flush=True)
            raise ReconsumeLater("the warehouse does not answer", delay_level=1)
        processed.add(message.message_id)
        print("reserved", order_id, step, "after", message.reconsume_times, "redeliveries", flush=True)


async def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    settings = ConsumerSettings(concurrency=8, max_reconsume_times=3, consume_timeout=60)
    subscriptions = {"orders": "created || paid"}
    async with PushConsumer(NAMESRV, "stock", subscriptions, on_orders, start="first", settings=settings):
        print("waiting for orders; press Ctrl-C to stop", flush=True)
        await stopped.wait()
    # Here, running calls of the listener have ended and the offsets are stored.
    print("stopped after", len(processed), "messages")


if __name__ == "__main__":
    asyncio.run(main())
