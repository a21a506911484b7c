"""The name server: brokers register their topics, clients look up routes. Only the KV table is stored on disk."""
