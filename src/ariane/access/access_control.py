"""Access control of a running server: reads and watches its files, and checks the requests of every handler. [AclFileWatchService]

    rocketmqHome/conf/plain_acl.yml            the default file, created empty if it does not exist
    rocketmqHome/conf/acl/**/*.yml, *.yaml     further files, except tools.yml, which tools read
    authConfigPath/users.json                  users of ACL 2.0 with their policies, changed by requests only

Secret keys may be elsewhere (`secret_references`). An invalid file stops the start. While the server runs, the last valid contents
stay in force and the error is logged. Files that hold secrets keep their mode; new ones are readable by their owner only. No
message or log line shows a secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ariane.access import secret_references
from ariane.access import users as user_table
from ariane.access.acl import Acl, AclFile, UserRules, parse_acl_file
from ariane.access.request_needs import RecordReader, RequestNeeds
from ariane.access.users import User, Users
from ariane.audit.records import RequestAccount
from ariane.errors import ConfigError
from ariane.extras import naming_extras
from ariane.net.connection import Handler, HandlerResult, Peer, Reply
from ariane.net.limits.flow_limits import RefusalRecorder
from ariane.net.limits.quotas import Quotas
from ariane.net.peer_log import PeerLog
from ariane.private_files import PRIVATE_MODE, replace_private
from ariane.protocol.codes import ResponseCode, code_name
from ariane.protocol.command import Command
from ariane.store.disk.files import Disk

log = logging.getLogger("ariane.access")

POLL_INTERVAL_S = 5.0
FILE_BYTES_MAX = 4 * 1024 * 1024
FILES_MAX = 1_000
DENIED = "org.apache.rocketmq.acl.common.AclException: "  # clients of 4.9.4 search for this prefix

Edit = Callable[[dict[str, Any]], None]


class AclState(NamedTuple):
    """The contents of the files at one time, and the rules that follow from them."""

    acl: Acl
    files: dict[str, AclFile]
    secret_stamps: dict[str, object]
    """Stamps of the files with secret keys, from before they were read."""
    users: Users
    """The users, without those of the files."""


class UserSettings(NamedTuple):
    """Where users are stored, and how their requests are checked."""

    disk: Disk
    path: str
    cluster: str
    initial: tuple[User, ...]
    """Users that are created at the start if they do not exist."""
    is_authorized: bool
    """Whether policies are checked; otherwise users may do everything."""


class AccessAudit(RefusalRecorder, Protocol):
    """Records what access control refuses. [ServerAuditLog]"""

    def refused_slave(self, ip: str, addr: str, account: str, reason: str) -> None:
        """Record a slave that did not prove the account which it needs."""
        ...


class AccessControl:
    """Checks requests by the accounts in the files below `home`, and by users.

    Without `home`, only users make requests; without `user_settings`, only accounts of files.
    """

    def __init__(
        self,
        home: Path | None,
        needs: Mapping[int, RequestNeeds],
        executor: Executor,
        now_ms: Callable[[], int],
        *,
        user_settings: UserSettings | None = None,
    ) -> None:
        self._home = home
        # The file that ACL requests change; created if it does not exist.
        self.default = (home or Path()) / "conf" / "plain_acl.yml"
        self.user_settings = user_settings
        self._needs = needs  # of each request code that the server has
        self._executor = executor
        self._now_ms = now_ms
        self._lock = asyncio.Lock()  # a change and a poll of the files exclude each other
        # Records refused requests and slaves; None: they are only logged.
        self.audit: AccessAudit | None = None
        self._peer_log = PeerLog(log)  # refused requests are logged at a bounded rate per peer
        if home is not None:
            self._create_default()
        self._users = self._load_users(user_settings) if user_settings is not None else {}
        stamps = self._stamps()  # taken before reading, so that a change in between is read by the next poll
        # Accounts and allow lists of all files; replaced as a whole, so that a request sees one state.
        self._state = self._read()
        self._loaded_stamps = stamps | self._state.secret_stamps

    @property
    def state(self) -> AclState:
        return self._state

    def with_checks(
        self, handlers: Mapping[int, Handler], read_record: RecordReader, quotas: Quotas
    ) -> dict[int, Handler]:
        """Return handlers that only permitted requests reach. They count for their accounts in `quotas`.

        Raises:
            KeyError: a code has no row in the table of needs.
        """
        if missing := handlers.keys() - self._needs.keys():
            raise KeyError(f"no row in the table of needs for the codes {sorted(missing)}")
        return {code: self._guard(serve, read_record, quotas) for code, serve in handlers.items()}

    def with_accounts(self, handlers: Mapping[int, Handler], quotas: Quotas) -> dict[int, Handler]:
        """Return handlers that all requests reach. Those that an account has signed count for it in `quotas`."""

        def identified(serve: Handler) -> Handler:
            return lambda command, peer: self._over_limit(command, peer, quotas) or serve(command, peer)

        return {code: identified(serve) for code, serve in handlers.items()}

    def identity(self, command: Command, peer: Peer) -> RequestAccount:
        """Return the account of a request, and how it is proven."""
        return self._state.acl.identity(command.field_map(), command.body, peer.names)

    async def reload_if_changed(self) -> None:
        """Read the files again if one of them changed."""
        async with self._lock:
            stamps = await self._in_thread(self._stamps, *self._state.secret_stamps)
            if stamps == self._loaded_stamps:
                return
            self._loaded_stamps = stamps
            try:
                self._state = await self._in_thread(self._read)
            except (ConfigError, OSError) as error:
                log.error("Ignoring changed access control files, the former contents stay in force: %s", error)
                return
            self._loaded_stamps = stamps | self._state.secret_stamps
            log.info("Reloaded access control files: %s", ", ".join(self._state.files))

    async def edit(self, choose: Callable[[dict[str, AclFile]], str], change: Edit) -> None:
        """Change the file that `choose` returns, and put the change in force.

        Raises:
            ConfigError: the files would not be valid together afterwards; nothing is written.
        """
        async with self._lock:
            await self._in_thread(self._edit, choose, change)

    def _edit(self, choose: Callable[[dict[str, AclFile]], str], change: Edit) -> None:
        """Change a file in the worker thread, to the end even if the request is cancelled."""
        with naming_extras():
            import yaml

        files = self._read().files
        path = choose(files)
        document = _document(path)
        version = files[path].version.next(self._now_ms())
        change(document)
        document["dataVersion"] = [{"counter": version.counter, "timestamp": version.timestamp}]
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=False)
        if len(text.encode()) > FILE_BYTES_MAX:
            raise ConfigError("aclEnable", path, f"the file would have more than {FILE_BYTES_MAX} bytes")
        state = self._read({path: document})
        _replace(path, text.encode())
        self._state, self._loaded_stamps = state, self._stamps() | state.secret_stamps

    async def edit_users(self, change: Callable[[Users], dict[str, User]]) -> None:
        """Change the users, durably, and put the change in force.

        Raises:
            ConfigError, ReplyError: of `change`; nothing is written.
            OSError: the file cannot be written.
        """
        async with self._lock:
            await self._in_thread(self._edit_users, change)

    def _edit_users(self, change: Callable[[Users], dict[str, User]]) -> None:
        assert self.user_settings is not None
        users = change(self._users)
        user_table.save_users(self.user_settings.disk, self.user_settings.path, users)
        self._users = users
        self._state = self._state._replace(acl=self._acl(self._state.files), users=users)

    def _in_thread(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    def _over_limit(self, command: Command, peer: Peer, quotas: Quotas, *, is_verified: bool = False) -> Reply | None:
        """Count a request for the account that proves to have sent it. Return its refusal if the account exceeds a limit."""
        identity = self._state.acl.identity(command.field_map(), command.body, peer.names, is_verified=is_verified)
        if not identity.proof or (over := quotas.identify(peer.id, identity.account)) is None:
            return None
        if self.audit is not None:
            self.audit.refused(command, peer, over.remark)
        return Reply(ResponseCode.SYSTEM_BUSY, remark=over.remark)

    def _guard(self, serve: Handler, read_record: RecordReader, quotas: Quotas) -> Handler:
        def guarded(command: Command, peer: Peer) -> HandlerResult:
            acl, fields = self._state.acl, command.field_map()
            denial = acl.denial_reason(command.code, fields, command.body, peer.ip, read_record, peer.names)
            if denial is None:
                is_verified = not acl.is_open_to(peer.ip)
                return self._over_limit(command, peer, quotas, is_verified=is_verified) or serve(command, peer)
            now = asyncio.get_running_loop().time()
            if self.audit is not None:
                self.audit.refused(command, peer, denial)
            self._peer_log.warning(peer.ip, now, "Denied %s of %s: %s", code_name(command.code), peer.addr, denial)
            if self.user_settings is not None:
                return Reply(ResponseCode.NO_PERMISSION, remark=denial)  # as in 5.x
            return Reply(ResponseCode.SYSTEM_ERROR, remark=DENIED + denial)

        return guarded

    # --- files ---

    def _create_default(self) -> None:
        if self.default.exists():
            return
        try:
            self.default.parent.mkdir(parents=True, exist_ok=True)
            _replace(str(self.default), b"globalWhiteRemoteAddresses: []\naccounts: []\n")
        except OSError as error:
            raise ConfigError("rocketmqHome", str(self.default), f"cannot write the file: {error.strerror}") from error
        log.warning("Created %s without accounts: all requests are denied until accounts are added", self.default)

    def _load_users(self, settings: UserSettings) -> Users:
        users = user_table.load_users(settings.disk, settings.path)
        missing = [user for user in settings.initial if user.username not in users]
        if missing:
            users = {**users, **user_table.checked_users(missing)}
            try:
                user_table.save_users(settings.disk, settings.path, users)
            except OSError as error:
                fix = f"cannot write the file: {error.strerror}"
                raise ConfigError("authConfigPath", settings.path, fix) from error
            log.warning("Created the users %s in %s", ", ".join(user.username for user in missing), settings.path)
        if not users and self._home is None:
            log.warning(
                "No users in %s: all requests are denied. Set initAuthenticationUser and restart", settings.path
            )
        return users

    def _acl(self, files: Mapping[str, AclFile]) -> Acl:
        rules = None
        if (settings := self.user_settings) is not None:
            rules = UserRules(user_table.accounts(self._users), settings.cluster, settings.is_authorized)
        return Acl(list(files.items()), self._needs, rules)

    def _paths(self) -> list[str]:
        if self._home is None:
            return []
        directory = self._home / "conf" / "acl"  # further account files
        more = [path for path in directory.rglob("*") if path.suffix in (".yml", ".yaml")]
        paths = [self.default, *sorted(path for path in more if path.name != "tools.yml")]
        if len(paths) > FILES_MAX:
            raise ConfigError("aclEnable", str(directory), f"{len(paths)} files: expected at most {FILES_MAX}")
        return [str(path) for path in paths]

    def _stamps(self, *secret_files: str) -> dict[str, object]:
        return {path: _stamp(path) for path in [*self._paths(), *secret_files]}

    def _read(self, instead: Mapping[str, dict[str, Any]] | None = None) -> AclState:
        """Read all files; `instead` has documents by path that replace those on the disk."""
        files: dict[str, AclFile] = {}
        secret_stamps: dict[str, object] = {}
        for path in self._paths():
            document = instead[path] if instead and path in instead else _document(path)
            secret_stamps |= {name: _stamp(name) for name in secret_references.secret_files(document)}
            files[path] = parse_acl_file(path, secret_references.with_secrets(path, document, os.environ))
        return AclState(self._acl(files), files, secret_stamps, self._users)


def _stamp(path: str) -> object:
    """Return what changes with a file: time, size and inode; None without one."""
    try:
        state = Path(path).stat()
    except FileNotFoundError:
        return None
    return (state.st_mtime_ns, state.st_size, state.st_ino)


def _document(path: str) -> dict[str, Any]:
    with naming_extras():
        import yaml  # only with access control: clusters in tests of applications need no extra

    try:
        if Path(path).stat().st_size > FILE_BYTES_MAX:
            raise ConfigError("aclEnable", path, f"the file has more than {FILE_BYTES_MAX} bytes")
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("aclEnable", path, f"cannot read the file: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "somewhere"
        # The error's own text quotes the file, which may be a secret.
        raise ConfigError("aclEnable", path, f"invalid YAML: {type(error).__name__} at {where}") from None
    if document is not None and not isinstance(document, dict):
        raise ConfigError("aclEnable", path, "expected a mapping with globalWhiteRemoteAddresses and accounts")
    return document or {}


def _replace(path: str, data: bytes) -> None:
    """Replace a file. It keeps its mode."""
    try:
        mode = Path(path).stat().st_mode & 0o777
    except FileNotFoundError:
        mode = PRIVATE_MODE
    replace_private(Path(path), data, mode)
