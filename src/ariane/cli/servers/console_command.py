"""`ariane console`: runs the web console of a cluster; `ariane console user` manages its accounts."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.options import paths as homes
from ariane.cli.options import shared_options
from ariane.cli.options.access_options import AccessOptions
from ariane.cli.options.option_kinds import flag_option, port_option, text_option, topic_option
from ariane.cli.output.help_format import create_app, examples
from ariane.cli.servers import console_user_command
from ariane.cli.servers.console_options import DataDir
from ariane.console.settings import DEFAULT_PORT, ConsoleSettings
from ariane.errors import ConfigError
from ariane.model.topic import TRACE_TOPIC

if TYPE_CHECKING:
    from ariane.console.server.http_server import ConsoleServer

SUMMARY = """Run the web console of a cluster; subcommands manage its accounts.

Works with Ariane's and Apache's brokers. Runs until SIGINT or SIGTERM."""
PACKAGES = ("fastapi", "uvicorn", "jinja2", "python_multipart", "jwt", "httpx")  # of the extra `console`

app = create_app(SUMMARY, invoke_without_command=True)

app.add_typer(console_user_command.app, name="user")


@app.callback(
    help=SUMMARY,
    no_args_is_help=False,  # without options, the console shows the cluster of `ariane up`
    subcommand_metavar="[COMMAND]",
    epilog=examples(
        "ariane console -n 10.0.0.1:9876",
        "ariane console -n 10.0.0.1:9876 --read-only",
    ),
)
def console(
    context: typer.Context,
    *,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    bind: Annotated[
        str,
        text_option(
            "--bind",
            "--host",
            metavar="ADDRESS",
            help="Address to listen on; other than loopback, users have to log in.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, port_option(help="HTTP port; 0 selects a free one.")] = DEFAULT_PORT,
    home: homes.TablesHome = None,
    data: DataDir = None,
    trace_topic: Annotated[str, topic_option(help="Topic of message traces.")] = TRACE_TOPIC,
    read_only: Annotated[bool, flag_option("--read-only", "Reject every change of the cluster.")] = False,
    require_login: Annotated[
        bool, flag_option("--require-login", "Demand a log-in on a loopback address, too.")
    ] = False,
    definitions: shared_options.DefinedTlsKeys = None,
    insecure: shared_options.Insecure = False,
    access: AccessOptions,
    log_file: shared_options.LogFile = None,
    until_stdin_closes: shared_options.UntilStdinCloses = False,
) -> None:
    """Run the console, unless a subcommand follows."""
    if context.invoked_subcommand is not None:
        shared_options.check_no_options(context, "a console")
        return
    if fault := install_fault():
        raise ConfigError("console", None, fault)
    from ariane.cli.servers.process import run_server
    from ariane.cli.servers.process.public_http import http_port

    http = http_port("console", bind, port, definitions, insecure=insecure, access=None)
    settings = ConsoleSettings(
        namesrv=namesrv,
        host=bind,
        port=port,
        client=access.client_settings(),
        tls=http.tls,
        gaps=http.gaps,
        data_dir=data or homes.console_dir(home),
        # Also if it does not exist yet: a pipeline may create it later.
        tables_dir=homes.tables_dir(home),
        trace_topic=trace_topic,
        is_read_only=read_only,
        is_login_required=require_login,
    )
    run_server.serve(lambda: _serving(settings), log_file=log_file, until_stdin_closes=until_stdin_closes)


def install_fault() -> str | None:
    """Return why the console cannot run in this Python; None if it can."""
    missing = [name.replace("_", "-") for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f"missing packages: {', '.join(missing)}; install them with pip install 'ariane[console]'"


def _serving(settings: ConsoleSettings) -> ConsoleServer:
    """Return the console's server, with the endpoints of Apache's dashboard, which the console itself does not import."""
    from ariane.console.dashboard.dashboard_routers import ROUTERS
    from ariane.console.server.http_server import ConsoleServer

    return ConsoleServer(settings, extensions=ROUTERS)
