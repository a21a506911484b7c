"""Load generator: measures how fast a cluster takes and delivers messages, from client processes on this machine.

    bench_run ─ topic, environment ─→ worker_processes ─ one process per client ─→ worker
        worker ─ send_load, consume_load, request_load ─→ measurements ─ JSON lines ─→ bench_run ─ merged ─→ BenchResult

Used by `ariane bench`. It needs only the client protocol, so it measures brokers of Apache RocketMQ as well.
"""
