"""Metrics for Prometheus: declared as tables of values, read at scrape time from statistics that exist anyway.

servers, clients, pipeline ─→ snapshot ─→ declared metrics ─→ text, in slices ─→ GET /metrics

families            what a metric is: name, type, meaning, labels
scraped_cluster    state of a cluster at the time of a scrape
cluster_metrics     metrics of topics, groups, clients and brokers, under the names of Apache's rocketmq-exporter
exposition          Prometheus text and OpenMetrics
endpoint            the HTTP server
cluster_poller      fills the snapshot by requests to brokers: `ariane exporter`
broker_source …     fill it from the state of a server in this process
"""
