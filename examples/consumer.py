"""Consumer: messages in an `async for` loop, acknowledged one by one.

    ariane up                            # in another terminal: a name server and a broker
    python consumer.py
    python order_service.py              # in a third terminal: sends the orders

With `ack="manual"` the program says what happens to each message: `ack`, `retry` or `reject`. Without it, asking for the next
message acknowledges the one before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal

from ariane import Consumer, ConsumerSettings

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    settings = ConsumerSettings(consume_timeout=60, max_reconsume_times=3)
    total = 0
    async with Consumer(
        NAMESRV, "revenue", {"orders": "created"}, ack="manual", start="first", settings=settings
    ) as consumer:
        for number in (signal.SIGINT, signal.SIGTERM):
            # Ends the loop below when it asks for its next message.
            asyncio.get_running_loop().add_signal_handler(number, consumer.stop)
        print("waiting for orders; press Ctrl-C to stop", flush=True)
        async for message in consumer:
            try:
                order = json.loads(message.body)
                total += int(order["amount"])
            except (ValueError, TypeError, KeyError) as error:
                print("rejected", message.message_id, repr(error), flush=True)
                await message.reject()  # a dead letter: no redelivery can help
                continue
            await message.ack()
            print(order["order"], "total", total, flush=True)
    print("stopped at", total)


if __name__ == "__main__":
    asyncio.run(main())
