"""POP of 5.x: consumers take messages without owning queues, and acknowledge each one. [PopMessageProcessor]

handlers.reading.pop ─→ pop_service ─ takes ─→ state.pop_queue   what one group has taken from one queue: pure
                          │      └─ records ─→ state.pop_table   all of them, in the change log and popState.json
                          └→ parked_polls: requests that found nothing
"""
