"""Order service: an asyncio producer with keys, order, and delayed messages.

    ariane up                            # in another terminal: a name server and a broker
    python order_service.py

It places an order per second until Ctrl-C. The steps of one order have the same `order_key`, so they are in one queue, and an
orderly consumer receives them in this order. Each order also sends a reminder to itself, which is delivered after 15 minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from datetime import timedelta

from ariane import Producer, errors

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
PAYMENT_TIME = timedelta(minutes=15)


class OrderService:
    """Sends the events of orders."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def place(self, order_id: str, amount: int) -> None:
        """Announce a new order, and remind of its payment later."""
        await self._send("created", order_id, amount=amount)
        # Only an Ariane broker or Apache 5.x delivers at any time. For a 4.x broker of Apache: delay_level=14, 10 minutes.
        await self._producer.send("payment-reminders", order_id.encode(), keys=[order_id], delay=PAYMENT_TIME)

    async def pay(self, order_id: str) -> None:
        """Announce that an order is paid."""
        await self._send("paid", order_id)

    async def _send(self, step: str, order_id: str, **fields: int) -> None:
        body = json.dumps({"order": order_id, "step": step, **fields}).encode()
        # `keys` finds the message (`ariane trace --key`), `tags` is what consumers filter by, `order_key` chooses the queue.
        result = await self._producer.send("orders", body, keys=[order_id], tags=step, order_key=order_id)
        print(order_id, step, "queue", result.queue.queue_id, "offset", result.queue_offset, flush=True)


async def main() -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    async with Producer(NAMESRV, "shop") as producer:
        service = OrderService(producer)
        order = 0
        while not stopped.is_set():
            order += 1
            try:
                await service.place(f"ORDER-{order}", amount=100 * order)
                await service.pay(f"ORDER-{order}")
            except errors.ArianeError as error:
                # All attempts failed. The message may be stored nevertheless, so consumers must expect it twice.
                print(f"ORDER-{order} failed: {error}", flush=True)
            try:
                await asyncio.wait_for(stopped.wait(), timeout=1)
            except TimeoutError:
                continue
    print("stopped after", order, "orders")


if __name__ == "__main__":
    asyncio.run(main())
