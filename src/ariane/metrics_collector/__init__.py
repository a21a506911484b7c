"""The metrics collector: polls every broker, slaves included, and publishes one sample per broker and round to a topic.

brokers ─poller→ Sample ─publisher→ topic → pipeline job `lag`
"""
