"""PUBLIC: the clients for scripts, threads, Django and Celery: the same classes, without asyncio.

    from ariane.blocking import Producer

    with Producer("127.0.0.1:9876", "shop") as producer:
        producer.send("orders", b"created", keys=["ORDER-17"])

They run on one event loop in a background thread. Any number of threads may share a client. A process that forks opens its clients
after the fork.
"""

from ariane.blocking.consumers import Consumer, ConsumerMessage, LitePullConsumer, PullConsumer, PushConsumer
from ariane.blocking.producers import ClientInstance, Producer, TransactionProducer
from ariane.blocking.simple_consumer import PoppedMessage, SimpleConsumer

__all__ = [
    "ClientInstance",
    "Consumer",
    "ConsumerMessage",
    "LitePullConsumer",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
]
