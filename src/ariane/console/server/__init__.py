"""The HTTP server of the console, with limits of its connections, in the event loop of its program."""
