"""Alerts: rules over the live state of the cluster, and notifications.

    LiveSnapshot ─ readings ─→ Reading per metric and subject ─ evaluation ─→ AlertTransition
                                rules + states ───────────────┘              │
                    silences ─→ notifications due ─→ web hook, e-mail ←──────┘     alert_service wires them

readings, evaluation and rules are pure; `alert_service` has the tasks and the files.
"""
