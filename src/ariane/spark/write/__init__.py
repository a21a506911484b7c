"""From rows to queues: messages (`encode`), the queue of each (`spread`), requests and their answers (`send`); `sink` has all."""
