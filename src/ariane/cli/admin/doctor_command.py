"""`ariane doctor`: looks for faults of a cluster and names the fix of each. `ariane.cluster.diagnosis` has the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession
from ariane.cli.admin.http_check import check_http, http_url
from ariane.cli.output.value_format import UNKNOWN

if TYPE_CHECKING:
    from ariane.cluster.diagnosis.findings import ClusterSnapshot, Finding

FAILED = 1
INDENT = "    "


def doctor(
    session: AdminSession,
    *,
    http: Annotated[
        list[str] | None,
        typer.Option(parser=http_url, metavar="URL", help="Also check this console or exporter; repeatable."),
    ] = None,
) -> None:
    """Check a cluster for faults and print the fix of each.

    Checks name servers, addresses, replication, disks, settings, subscriptions, backlogs, dead letters, clocks, versions,
    load and limits. Takes 10 s more if messages have been pending for a minute: it measures whether the lag grows.
    Exit status: 1 if an error was found; warnings alone end with 0.
    """
    from ariane.cluster.diagnosis.cluster_checks import diagnose
    from ariane.cluster.diagnosis.cluster_snapshot import open_files_limit
    from ariane.cluster.diagnosis.findings import ERROR

    snapshot = session.read(lambda admin: admin.fetch_snapshot(open_files_max=open_files_limit()))
    findings = [*diagnose(snapshot), *(finding for url in http or () for finding in check_http(url))]
    if session.as_json:
        session.show(findings)
    else:
        _print(snapshot, findings)
    if any(finding.level == ERROR for finding in findings):
        raise typer.Exit(FAILED)


def _print(snapshot: ClusterSnapshot, findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    for finding in findings:
        style = "bold red" if finding.level == "error" else "bold yellow"
        console.print(Text(f"{finding.level.upper()} {finding.check}: {finding.subject}", style=style), soft_wrap=True)
        console.print(Padding(Text(finding.problem), (0, 0, 0, len(INDENT))))
        console.print(Padding(Text(f"fix: {finding.fix}"), (0, 0, 0, len(INDENT))))
    errors = sum(finding.level == "error" for finding in findings)
    result = f"errors {errors}, warnings {len(findings) - errors}" if findings else "no fault found"
    scope = f"name servers {len(snapshot.name_servers)}, brokers {len(snapshot.brokers)}, groups {_groups(snapshot)}"
    console.print(f"checked: {scope}; {result}")


def _groups(snapshot: ClusterSnapshot) -> str:
    if snapshot.groups is None:
        return UNKNOWN
    online = sum(state.clients != 0 for state in snapshot.groups.values())
    return f"{len(snapshot.groups)} ({online} online)"
