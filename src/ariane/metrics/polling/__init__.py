"""The state of a cluster for a scrape, and the requests for it."""
