"""The state of a whole cluster, and lists without a page of details."""
