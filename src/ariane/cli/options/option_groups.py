"""Groups of options: a dataclass declares them once, and each command has one parameter for all of them.

@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    access_key: Annotated[str, typer.Option(…)] = ""
    …

def doctor(namesrv: NameServers, access: AccessOptions = NO_ACCESS) -> None:      Typer sees --access-key, …
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any


def expand_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the options of each group in place of the parameter that is annotated with its dataclass."""
    signature = inspect.signature(command, eval_str=True)
    groups = {name: _group_fields(item) for name, item in signature.parameters.items() if _is_group(item)}
    if not groups:
        return command

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        for name, fields in groups.items():
            group = signature.parameters[name].annotation
            values[name] = group(**{field.name: values.pop(field.name) for field in fields})
        return command(**values)

    # Keyword-only, because groups with defaults may precede parameters without.
    parameters = [
        option.replace(kind=Parameter.KEYWORD_ONLY)
        for name, item in signature.parameters.items()
        for option in groups.get(name, [item])
    ]
    # Typer reads both.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in parameters}
    return run


def _is_group(parameter: Parameter) -> bool:
    return isinstance(parameter.annotation, type) and dataclasses.is_dataclass(parameter.annotation)


def _group_fields(parameter: Parameter) -> list[Parameter]:
    return list(inspect.signature(parameter.annotation, eval_str=True).parameters.values())
