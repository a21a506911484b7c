"""What a member of a group knows of the queues that it reads: options, subscriptions, cached messages, offsets."""
