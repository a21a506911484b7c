"""Request handlers: a class per group of request codes, a method per code.

A method gets the command and its peer, and returns a Reply, or an awaitable of it if the reply has to wait (a held pull, a
flush). Handlers never see the connection. `request_routing` maps each code to its method, `broker_handlers` builds the objects.
"""
