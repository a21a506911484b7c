"""The protocol of RocketMQ 5 clients (gRPC, port 8081), served from the same messages, offsets and delays as remoting requests.

    client ── HTTP/2 ──▶ transport ─ call ─▶ calls ─ typed requests ─▶ MessageService ─▶ handlers of the broker
                            │                  │                        (broker_service: as commands, signed by the account)
                            │                  ├ conversion: protobuf ◀▶ our values, statuses, checks of names and sizes
                            │                  └ client_sessions ◀─ transaction checks and notices of the broker
                            └ byte_bridge: plain and encrypted connections on one port

A call has the same access control, limits, audit records and durability as a remoting request, because it is one: `calls` know a
`MessageService`, and neither sockets nor the broker.
"""
