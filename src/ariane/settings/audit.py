"""Settings of the audit log, which every server has."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ariane.settings.connections import ConnectionSettings
from ariane.settings.definitions import ARIANE_ONLY, Bytes, DefaultText


class AuditSettings(ConnectionSettings, frozen=True, kw_only=True, rename="camel"):
    """Audit log."""

    audit_log_enable: Annotated[Literal["auto", "true", "false"], ARIANE_ONLY, DefaultText("`aclEnable`")] = "auto"
    """Record changes and refused requests, for `ariane audit`."""
    audit_log_path: Annotated[str, ARIANE_ONLY, DefaultText("`audit` next to the other files of the server")] = ""
    """Directory of audit.jsonl and audit_refused.jsonl."""
    audit_log_file_size: Annotated[Bytes, ARIANE_ONLY, Meta(ge=65_536, le=1 << 30)] = 8 * 1024 * 1024
    """Size from which a new file is started."""
    audit_log_files: Annotated[int, ARIANE_ONLY, Meta(ge=2, le=1_000)] = 10
    """Files of changes, and files of refusals, that are retained."""

    def has_audit_log(self, *, acl_enable: bool) -> bool:
        """Return whether the server has an audit log."""
        return self.audit_log_enable == "true" or (self.audit_log_enable == "auto" and acl_enable)
