"""Transaction with a database: a message is delivered if, and only if, the database's transaction is committed.

    ariane up                            # in another terminal: a name server and a broker
    python transaction_database.py

It pays some orders in SQLite (payments.db, or the path in PAYMENTS_DB) and sends `paid` for each. The row has the id of the
message, in the same database transaction. So `check` can decide at any time, also in another process and after a crash: the
message belongs to a payment, or the payment was never made.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from datetime import UTC, datetime, timedelta

from ariane import LocalState, ReceivedMessage, TransactionProducer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
DATABASE = os.environ.get("PAYMENTS_DB", "payments.db")
LONGEST_PAYMENT = timedelta(minutes=1)


class Payments:
    """The table of payments."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._connect() as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS payments"
                " (order_id TEXT PRIMARY KEY, cents INTEGER CHECK (cents > 0), message_id TEXT UNIQUE)"
            )

    def pay(self, order_id: str, cents: int, message_id: str) -> None:
        """Store a payment. Raises sqlite3.IntegrityError if the order is paid already, or the amount is not positive."""
        with self._connect() as database:  # commits, or rolls back if the statement raises
            database.execute("INSERT INTO payments VALUES (?, ?, ?)", (order_id, cents, message_id))

    def has(self, message_id: str) -> bool:
        """Return whether the payment of this message is committed."""
        with self._connect() as database:
            row = database.execute("SELECT 1 FROM payments WHERE message_id = ?", (message_id,)).fetchone()
        return row is not None

    async def check(self, message: ReceivedMessage) -> LocalState:
        """Decide about a message. The broker asks when it received no decision, because a process or a connection failed."""
        if await asyncio.to_thread(self.has, message.message_id):
            return LocalState.COMMIT
        if datetime.now(UTC) - message.born_at < LONGEST_PAYMENT:
            return LocalState.UNKNOWN  # the payment may still be running: the broker asks again
        return LocalState.ROLLBACK

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)


async def main() -> None:
    payments = Payments(DATABASE)
    async with TransactionProducer(NAMESRV, "payments", check=payments.check) as producer:
        for order_id, cents in (("ORDER-1", 1250), ("ORDER-2", -5), ("ORDER-3", 990)):
            async with producer.transaction("paid", order_id.encode(), keys=[order_id]) as transaction:
                try:
                    await asyncio.to_thread(payments.pay, order_id, cents, transaction.id)
                except sqlite3.IntegrityError:
                    transaction.rollback()  # certainly nothing was stored: no need to wait for a check
            print(order_id, transaction.state.name, flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
