"""Message traces written by the server, for clients that write none: what happened to each message, by the server's clock."""
