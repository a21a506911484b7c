"""Groups of options: a dataclass declares them once, and each command has one parameter for all of them.

@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    access_key: Annotated[str, typer.Option(…)] = ""
    …

def cat(topic: Topic, access: AccessOptions) -> None:      Typer sees --access-key, …
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature
from typing import Any, get_type_hints


def expand_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the options of each group in place of the parameter that is annotated with its dataclass.

    A field of a group may be a group, too.
    """
    signature = inspect.signature(command, eval_str=True)
    if not any(map(_is_group, signature.parameters.values())):
        return command

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        return command(**_arguments(signature, values))

    # Keyword-only, because groups with defaults may precede parameters without.
    parameters = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in _options(signature)]
    # Typer reads both.
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in parameters}
    return run


def given_options(group: Any) -> list[str]:
    """Return the names of the options of a group that have another value than by default."""
    hints = get_type_hints(type(group), include_extras=True)
    names = []
    for field in dataclasses.fields(group):
        if getattr(group, field.name) not in (field.default, []):  # [] stands for no value of a repeatable option
            option = hints[field.name].__metadata__[0]
            declared = (option.default, *(option.param_decls or ()))  # typer.Option takes the first name for a default
            long_names = [name for name in declared if str(name).startswith("--")]
            names += [*long_names, f"--{field.name.replace('_', '-')}"][:1]
    return names


def _options(signature: Signature) -> Iterator[Parameter]:
    """Yield the parameters, those of a group in its place."""
    for parameter in signature.parameters.values():
        yield from _options(_fields(parameter)) if _is_group(parameter) else [parameter]


def _arguments(signature: Signature, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the parameters, for a group its object."""
    return {
        name: parameter.annotation(**_arguments(_fields(parameter), values)) if _is_group(parameter) else values[name]
        for name, parameter in signature.parameters.items()
    }


def _is_group(parameter: Parameter) -> bool:
    return isinstance(parameter.annotation, type) and dataclasses.is_dataclass(parameter.annotation)


def _fields(group: Parameter) -> Signature:
    return inspect.signature(group.annotation, eval_str=True)
