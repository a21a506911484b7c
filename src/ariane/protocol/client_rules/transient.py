"""Which errors are transient, and how soon a request is repeated after one: it may succeed then, or at another server.

    no response, no route           transient
    response code in a code set     transient, unless the remark says that access was denied
    everything else                 permanent

The one policy for all clients (asyncio, Spark, cluster operations, pipeline); they differ only in the set of codes and in how
long they continue.
"""

from __future__ import annotations

from ariane.errors import ConnectionLost, ReplyError, RequestTimeout, RouteNotFound, ServerUnavailable
from ariane.model.backoff import Backoff
from ariane.protocol.codes import ResponseCode

RETRY_BACKOFF = Backoff(first_s=0.1, longest_s=1.0)
"""Delays before a request is repeated: short enough to notice a restarted broker, long enough not to load one that starts."""

NO_RESPONSE = (ConnectionLost, RequestTimeout)
"""Errors of a request that got no response."""

UNAVAILABLE = (ConnectionLost, RequestTimeout, RouteNotFound, ServerUnavailable)
"""Errors that mean: the server, or any server for this topic, cannot be reached now."""

# Responses of a broker that starts, stops or is overloaded, or that a stale route led to.
TRANSIENT_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)

# Responses to a send after which another broker may accept the message. [DefaultMQProducer.retryResponseCodes]
RETRY_ELSEWHERE_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)

# As above, for a sender that may also wait and try the same broker again.
RETRY_SEND_CODES = RETRY_ELSEWHERE_CODES | {ResponseCode.SYSTEM_BUSY}

# In the remark of a SYSTEM_ERROR: the credentials are wrong, and will be wrong the next time.
ACCESS_DENIED = "AclException"


def is_transient(error: BaseException, codes: frozenset[ResponseCode] = TRANSIENT_CODES) -> bool:
    """Return whether a request that failed with `error` may succeed when it is repeated.

    Args:
        error: What the request raised.
        codes: Response codes that count as transient.
    """
    if isinstance(error, ReplyError):
        return error.code in codes and ACCESS_DENIED not in (error.remark or "")
    return isinstance(error, UNAVAILABLE)
