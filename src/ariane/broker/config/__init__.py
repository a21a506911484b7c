"""The configuration of a broker: broker.conf, its keys and ranges, and changes while it runs."""
