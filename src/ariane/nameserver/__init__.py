"""The name server: where brokers say what they have, and clients ask for it. It keeps nothing but the KV table on disk."""
