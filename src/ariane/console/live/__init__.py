"""The cluster as the console's lists show it: one background poll for all tabs, and connections that fail fast."""
