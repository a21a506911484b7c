"""Statuses of replies: their codes, and those that refusals of the broker become. [Code of apache.rocketmq.v2, ResponseBuilder]

Clients decide by the code: 42900 is repeated later, 40013 ends the attempts to acknowledge a message, and most others are repeated
at once. So each refusal has a code of its own, where Java's proxy in the broker's process answers 50001.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ariane.errors import ArianeError, ReplyError, RequestTimeout
from ariane.protocol.codes import ResponseCode
from ariane.proxy import api

ACCOUNT_PREFIX = "org.apache.rocketmq.acl.common.AclException: "  # of refusals by accounts of plain_acl.yml


class StatusCode(IntEnum):
    """The codes that this server gives."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402


class CallRefused(ArianeError):
    """A call that is answered with another status than OK."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


_OF_REPLY: dict[int, StatusCode] = {
    ResponseCode.SYSTEM_BUSY: StatusCode.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: StatusCode.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: StatusCode.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: StatusCode.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: StatusCode.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.MESSAGE_ILLEGAL: StatusCode.BAD_REQUEST,
    ResponseCode.NO_PERMISSION: StatusCode.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: StatusCode.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: StatusCode.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: StatusCode.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.INVALID_PARAMETER: StatusCode.BAD_REQUEST,
    ResponseCode.NO_MESSAGE: StatusCode.INVALID_RECEIPT_HANDLE,
    ResponseCode.POLLING_FULL: StatusCode.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_TIMEOUT: StatusCode.MESSAGE_NOT_FOUND,
}


def refusal_of(error: ArianeError, *, is_anonymous: bool) -> CallRefused:
    """Return the refusal that an error becomes.

    Args:
        error: Code and remark of a broker, or why there are none.
        is_anonymous: Whether the call was not signed: a permission that it lacks is a missing signature then.
    """
    if isinstance(error, CallRefused):
        return error
    if not isinstance(error, ReplyError):
        is_late = isinstance(error, RequestTimeout)
        return CallRefused(StatusCode.PROXY_TIMEOUT if is_late else StatusCode.INTERNAL_SERVER_ERROR, str(error))
    text = (error.remark or f"the broker answered code {error.code}").removeprefix(ACCOUNT_PREFIX)
    is_denied = error.code == ResponseCode.NO_PERMISSION or (error.remark or "").startswith(ACCOUNT_PREFIX)
    if is_denied:
        return CallRefused(StatusCode.UNAUTHORIZED if is_anonymous else StatusCode.FORBIDDEN, text)
    return CallRefused(_OF_REPLY.get(error.code, StatusCode.INTERNAL_SERVER_ERROR), text)


def status(code: StatusCode, text: str = "OK") -> Any:
    """Return a `Status`."""
    return api.Status(code=int(code), message=text)


def ok() -> Any:
    """Return the `Status` of success."""
    return status(StatusCode.OK)


def of_refusal(refusal: CallRefused) -> Any:
    """Return the `Status` of a refusal."""
    return status(refusal.code, refusal.text)


def of_entries(statuses: list[Any]) -> Any:
    """Return the `Status` of a reply whose entries have statuses: theirs if all have one code."""
    codes = {each.code for each in statuses}
    if len(codes) == 1:
        return statuses[0]
    return status(StatusCode.MULTIPLE_RESULTS, "the entries have different results")
