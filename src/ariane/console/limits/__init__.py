"""Limits of accounts: topics and groups that they may see, and messages whose contents are masked.

access.toml ─→ AccessRules.access_of(account, role) ─→ Access: the one decision function, and the current one of a request
                                                        │
    LimitedAdmin, LimitedPool   requests and answers ◀──┤   pages, API, search, exports and actions read the cluster by these
    limit_snapshot              rows of lists        ◀──┘

A topic that an account may not see looks like one that does not exist: the pool answers as a server without it would.
"""
