"""`ariane cat`: sends standard input to a topic, or prints a topic. Modelled on kcat.

exit status   0 success   1 a message was not sent, or a server failed   2 invalid command line
              130 interrupted by Ctrl-C   141 (SIGPIPE) the reader of the output has closed the pipe   143 terminated
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.messages.cat_options import IN_FLIGHT, ConsumeOptions, ProduceOptions, RecordOptions
from ariane.cli.options import queue_selection, shared_options
from ariane.cli.options.access_options import AccessOptions
from ariane.cli.options.option_groups import given_options
from ariane.cli.options.option_kinds import flag_option
from ariane.cli.servers.process import signals
from ariane.errors import UsageError
from ariane.model.quantities import count_text

if TYPE_CHECKING:
    from ariane.cli.messages.cat_consume import ConsumePlan
    from ariane.cli.messages.cat_produce import SendReport
    from ariane.cli.messages.message_format import Formatter
    from ariane.client.instance.settings import ClientSettings

PRODUCER_GROUP = "ariane-cat"


def cat(
    topic: Annotated[str, typer.Argument(parser=shared_options.topic_name, metavar="TOPIC", help="Name of the topic.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Files to send, with -P; - is standard input.")
    ] = None,
    *,
    produce: Annotated[bool, flag_option("--produce", "Send standard input or files.", short="-P")] = False,
    record: RecordOptions,
    consuming: ConsumeOptions,
    producing: ProduceOptions,
    namesrv: shared_options.NameServers = shared_options.NAMESRV_DEFAULT,
    access: AccessOptions,
) -> None:
    """Print the messages of a topic, or send standard input or files to it.

    Exit status: 0 success; 1 a message was not sent or a server failed; 130 Ctrl-C; 141 the reader closed the pipe.
    """
    client = access.client_settings()
    if produce:
        _reject(given_options(consuming), "cannot be combined with -P")
        _produce(namesrv, client, topic, files or ["-"], record, producing)
        return
    _reject([*(["FILE"] if files else []), *given_options(producing)], "requires -P")
    formatter = consuming.formatter(record)
    _consume(namesrv, client, consuming.plan(topic, record), formatter)


def _reject(names: Sequence[str], reason: str) -> None:
    if names:
        raise UsageError(names[0], None, reason)


def _produce(
    namesrv: str,
    client: ClientSettings | None,
    topic: str,
    paths: Sequence[str],
    record: RecordOptions,
    producing: ProduceOptions,
) -> None:
    from ariane.cli.messages import cat_produce
    from ariane.cli.servers.process import run_server
    from ariane.client.instance.client_instance import ClientInstance
    from ariane.client.instance.settings import ProducerSettings
    from ariane.client.producer import Producer
    from ariane.net.pools.server_health import ServerHealth

    template, form = producing.template(topic, record), producing.input_format(record)
    in_flight = producing.in_flight or IN_FLIGHT
    settings = ProducerSettings(message_max=cat_produce.MESSAGE_MAX, in_flight_max=in_flight)

    async def work() -> int:
        with signals.loop_stop_signal() as stop:
            async with (
                ClientInstance(namesrv, client, health=ServerHealth()) as instance,
                Producer(instance, PRODUCER_GROUP, settings=settings) as producer,
            ):
                target = None
                if record.queue:
                    names = queue_selection.select_queues(await producer.queues(topic), record.queue)
                    if len(names) > 1:
                        choices = ", ".join(f"{name.broker}:{name.queue_id}" for name in names)
                        raise UsageError("--queue", None, f"messages are sent to one queue; choose one of {choices}")
                    target = names[0]
                window = cat_produce.SendWindow(producer, target, in_flight)
                records = cat_produce.read_records(paths, form)
                report = await cat_produce.produce(
                    records, template, window, is_json=form.is_json, count=record.count, stop=stop.event
                )
            _print_unsent(report)
            return 1 if report.failures else stop.exit_status

    if status := run_server.run_loop(work()):
        raise typer.Exit(status)


def _print_unsent(report: SendReport) -> None:
    """Report on standard error what was not sent; print nothing if everything was."""
    for failure in report.failures:
        typer.echo(f"Error: {failure}", err=True)
    if report.failures or not report.is_complete:
        rest = "" if report.is_complete else f"; any input after {report.last_read or 'the start'} was not sent"
        typer.echo(f"{count_text(report.sent, 'message')} sent, {len(report.failures):,} failed{rest}", err=True)


def _consume(namesrv: str, client: ClientSettings | None, plan: ConsumePlan, formatter: Formatter) -> None:
    from ariane.cli.messages import cat_consume
    from ariane.cli.messages.byte_streams import ByteOutput
    from ariane.cli.servers.process import run_server
    from ariane.client.instance.client_instance import ClientInstance

    is_pipe_closed = False

    async def work() -> int:
        nonlocal is_pipe_closed
        with signals.loop_stop_signal() as stop:
            output = cat_consume.MessageOutput(ByteOutput(1, stop.event), formatter, plan)
            async with ClientInstance(namesrv, client) as instance:
                try:
                    await cat_consume.consume(instance, plan, output, stop.event)
                except BrokenPipeError:
                    is_pipe_closed = True
            return stop.exit_status

    status = run_server.run_loop(work())
    if is_pipe_closed:
        signals.end_by_broken_pipe()
    if status:
        raise typer.Exit(status)
