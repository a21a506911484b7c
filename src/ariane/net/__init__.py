"""Sockets: the only asyncio shell of the protocol."""
