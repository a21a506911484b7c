"""PUBLIC: payload codecs: what the body of a message means.

    orders = Json(Order)                                   # a dataclass, msgspec.Struct, TypedDict or pydantic model
    async with Producer(namesrv, "shop", payload=orders) as producer:
        await producer.send("orders", payload=order)       # an Order
    async with Consumer(namesrv, "stock", {"orders": "*"}, payload=orders) as consumer:
        async for message in consumer:
            message.payload                                # an Order

A codec is any object with `encode` and `decode`. A body that `decode` fails on is logged and becomes a dead letter.
"""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast, overload

import msgspec

from ariane.errors import ConfigError

# Type of the payloads of a client and its messages; without a codec a payload is the body. Type checkers have the stubs of
# typing_extensions, whose type variables have defaults: `Producer` means `Producer[bytes]`.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P = TypeVar("P", default=bytes)
else:
    from typing import TypeVar

    P = TypeVar("P")

Value = TypeVar("Value")


class PayloadCodec(Protocol[Value]):
    """Converts between values and bodies of messages."""

    def encode(self, value: Value, /) -> bytes:
        """Return the body for a value. Raise an exception if there is none."""
        ...

    def decode(self, body: bytes, /) -> Value:
        """Return the value of a body. Raise an exception if it has none."""
        ...


class Json(Generic[Value]):
    """JSON in UTF-8, checked against a type.

    Args:
        kind: A type that msgspec supports (dataclasses, `msgspec.Struct`, `TypedDict`, attrs classes, containers of these) or a
            pydantic model. Omit it for any JSON: dictionaries, lists, strings and numbers.

    Raises:
        ConfigError: the type is not supported.

    Example:
        Json(Order).decode(b'{"id": 17}')
    """

    @overload
    def __init__(self: Json[Any]) -> None: ...

    @overload
    def __init__(self, kind: type[Value]) -> None: ...

    @overload
    def __init__(self: Json[Any], kind: UnionType) -> None: ...

    def __init__(self, kind: Any = Any) -> None:
        self._kind = kind
        # Models of pydantic check themselves; msgspec does not know them.
        self._is_model = hasattr(kind, "model_validate_json")
        try:
            self._decoder = msgspec.json.Decoder(Any if self._is_model else kind)
        except TypeError as error:
            raise ConfigError("kind", kind, f"msgspec cannot decode this type: {error}") from error

    def encode(self, value: Value, /) -> bytes:
        """Return the value as JSON.

        Raises:
            TypeError: the value has no form in JSON.
        """
        if self._is_model:
            return cast(str, cast(Any, value).model_dump_json()).encode()
        return msgspec.json.encode(value)

    def decode(self, body: bytes, /) -> Value:
        """Return the value.

        Raises:
            ValueError: the body is not JSON, or not of the type; msgspec.ValidationError and pydantic.ValidationError are kinds
                of it.
        """
        if self._is_model:
            return cast(Value, self._kind.model_validate_json(body))
        return cast(Value, self._decoder.decode(body))
