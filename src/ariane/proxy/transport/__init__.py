"""Transports of the gRPC port: HTTP/2 on sockets at one side, the calls of `CallServer` at the other.

aio_transport       the library grpcio, with `byte_bridge` in front of it: plain and encrypted connections on one port
native_transport    the native kernels: a thread that owns sockets, TLS and HTTP/2, and passes turns of calls
"""
