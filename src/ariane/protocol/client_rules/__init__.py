"""Rules of clients, for asyncio and Spark alike: which server a request is sent to, and when it is repeated. No I/O."""
