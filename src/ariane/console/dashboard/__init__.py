"""The HTTP endpoints of Apache's rocketmq-dashboard that scripts use, with the same paths, parameters and answers.

    dashboard_*.py   one router per area, on the operations of `Admin` and the live snapshot
    formats          forms of parameters, answers and errors, and values as Java prints them

The console does not import this package: `ariane console` passes `dashboard_routers.ROUTERS` to its server.

Recorded answers of versions 1.0.0 and 2.1.0 are replayed by tests/console/test_dashboard_replay.py, which also lists where the
answers differ on purpose; docs/console-dashboard-api.md explains these differences.
"""
