"""Routes of messages: their search, traces, delayed messages, dead letters and transactions."""
