"""Bytes and commands of the remoting protocol, without sockets: what is pure about talking RocketMQ."""
