"""One request, one function: from the typed header to a Reply. A handler is given the few parts it needs.

A handler returns its Reply, or an awaitable of it when the answer has to wait (a held pull, a flush); it never sees the
connection. Tables at the end of each module say which code is served by which function.
"""
