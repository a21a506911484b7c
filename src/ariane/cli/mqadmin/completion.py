"""Shell completion of `mqadmin`: scripts for bash, zsh and fish with the names of all commands and their long options.

eval "$(mqadmin completion bash)"
"""

from __future__ import annotations

from collections.abc import Sequence

from ariane.cli.mqadmin.command import Option
from ariane.cli.mqadmin.command_registry import REGISTRY, load_all
from ariane.cli.options.tls_options import TLS_OPTIONS
from ariane.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
ACCESS = ("--accessKey", "--secretKey", *(option.java_flag for option in TLS_OPTIONS))
COMMON = ("--help", "--namesrvAddr", "--json", "--watch", *ACCESS)

_BASH = """_{name}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}}
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
}}
complete -F _{name} {name}
"""


def completion_script(arguments: Sequence[str], prog: str) -> str:
    """Return the completion script of a shell.

    Raises:
        UsageError: no shell is named, or an unknown one.
    """
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError("completion", " ".join(arguments) or None, f"expected one of: {', '.join(SHELLS)}")
    name = prog.split(maxsplit=1)[0]
    options = {command.name: _long_options(command.options, command.is_change) for command in load_all()}
    if arguments[0] == "fish":
        return _fish(name, options)
    cases = "\n".join(
        f'    {command}) COMPREPLY=($(compgen -W "{" ".join(names)}" -- "$word")) ;;'
        for command, names in options.items()
    )
    script = _BASH.format(name=name, commands=" ".join([*REGISTRY, "help", "completion"]), cases=cases)
    return script if arguments[0] == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{script}"


def _long_options(options: Sequence[Option], is_change: bool) -> list[str]:
    names = [f"--{option.long}" for option in options]
    return [*names, *COMMON, *(["--dry-run"] if is_change else [])]


def _fish(name: str, options: dict[str, list[str]]) -> str:
    rows = [f"complete -c {name} -f"]
    for command, names in options.items():
        rows.append(f"complete -c {name} -n __fish_use_subcommand -a {command} -d '{REGISTRY[command].summary}'")
        rows += [f"complete -c {name} -n '__fish_seen_subcommand_from {command}' -l {option[2:]}" for option in names]
    return "\n".join(rows) + "\n"
