"""The protocol of RocketMQ 5 clients (gRPC, port 8081), served from the same messages, offsets and delays as remoting requests.

    client ── HTTP/2 ──▶ transport ─ bytes ─▶ call_server ─ request ─▶ calls ─ typed requests ─▶ MessageService
                                                  │                      ├ conversion: protobuf ◀▶ our values, statuses, checks
                                                  └ account, limits      └ client_sessions ◀─ transaction checks and notices

    MessageService ─ broker_service: as commands, signed by the account ─▶ handlers of the broker

A call has the same access control, limits, audit records and durability as a remoting request, because it is one: `calls` know a
`MessageService`, and neither sockets nor the broker.
"""
