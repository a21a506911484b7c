"""The process of a server: its run, signals, garbage collector, metrics endpoint, and refusals of unprotected ports."""
