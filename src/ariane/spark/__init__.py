"""`format("rocketmq")`: RocketMQ topics as DataFrames. What runs on an executor is here, and loads no server."""
