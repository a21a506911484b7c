"""The log on disk: synchronous, owns no task, thread or socket. `message_store` is the name others import."""
