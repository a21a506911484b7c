"""Cluster operations over RPC: topics, groups, messages and transactions of any Ariane or Apache cluster.

Each operation is a function that returns a value; the command line and the tests share them.
"""
