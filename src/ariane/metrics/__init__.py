"""Metrics for Prometheus: declared as tables of values, read at scrape time from statistics that exist anyway.

servers, clients, pipeline ─→ snapshot ─→ declared metrics ─→ text, in slices ─→ GET /metrics

families            what a metric is: name, type, meaning, labels
polling             state of a cluster at the time of a scrape, and the requests that fill it
cluster_metrics     metrics of topics, groups, clients and brokers, under the names of Apache's rocketmq-exporter
exporter            those of a cluster that is polled: `ariane exporter`
broker_source …     those of a server in this process, from its state
serving             the HTTP server, Prometheus text and OpenMetrics
"""
