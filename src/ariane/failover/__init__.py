"""Automatic failover: which member of a broker set may serve, decided by a lease in a coordination service

Nothing in this package replicates messages. A broker with failover (docs/failover.md) gives it a `FailoverReplica`.
"""
