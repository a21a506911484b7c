"""A proxy in front of a cluster: the message service over remoting requests to brokers that name servers list."""
