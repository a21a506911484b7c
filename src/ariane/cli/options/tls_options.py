"""TLS options of the command line and their variables, defined once for `ariane` (`--tls-ca-file`) and `mqadmin` (`--tlsCaFile`).

Names, values and contradictions are those of `ClientSettings` and of the Spark connector (net/tls.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from ariane.errors import ConfigError, UsageError
from ariane.net.tls import TlsOptions, Verify, camel_case, check_tls, tls_context

VERIFY_MODES = ("true", "ca", "false")
TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class TlsOption(NamedTuple):
    """An option of a command line.

    Attributes:
        setting: Field of `ClientSettings`.
        metavar: How the help names the value; empty: a flag.
        help: What it does.
    """

    setting: str
    metavar: str
    help: str

    @property
    def variable(self) -> str:
        """Environment variable, ARIANE_TLS_CA_FILE for example."""
        return f"ARIANE_{self.setting.removeprefix('use_').upper()}"

    @property
    def flag(self) -> str:
        """Name for `ariane`."""
        return kebab_case(self.setting)

    @property
    def java_flag(self) -> str:
        """Name for `mqadmin`, in the style of Java's options."""
        return java_style(self.setting)


USE_TLS = TlsOption("use_tls", "", "Encrypt connections to name servers and brokers.")
TLS_VERIFY = TlsOption(
    "tls_verify", "MODE", "Check certificate and host name (true, default), certificate (ca) or nothing (false)."
)
TLS_CA_FILE = TlsOption("tls_ca_file", "FILE", "PEM file of trusted authorities, instead of the machine's.")
TLS_CERT_FILE = TlsOption("tls_cert_file", "FILE", "PEM file of the client certificate.")
TLS_KEY_FILE = TlsOption("tls_key_file", "FILE", "PEM file of its key, if that is another file.")
TLS_KEY_PASSWORD_FILE = TlsOption("tls_key_password_file", "FILE", "File with the password of that key, if it has one.")
TLS_OPTIONS = (USE_TLS, TLS_VERIFY, TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE, TLS_KEY_PASSWORD_FILE)


class TlsValues(NamedTuple):
    """Values of TLS_OPTIONS, in their order. Satisfies `net.tls.TlsOptions`."""

    use_tls: bool = False
    tls_verify: Verify = "true"
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_key_password_file: str = ""


NO_TLS = TlsValues()


def check_options(options: TlsOptions, spell: Callable[[str], str]) -> None:
    """Check options of a command line, and that their files can be used.

    Raises:
        UsageError: they contradict each other, or a file cannot be used.
    """
    try:
        check_tls(options, spell)
        tls_context(options, spell)
    except ConfigError as error:
        raise UsageError(error.key, error.value, error.fix) from None


def kebab_case(setting: str) -> str:
    """Return the option of a setting as `ariane` spells it."""
    return f"--{setting.removeprefix('use_').replace('_', '-')}"


def java_style(setting: str) -> str:
    """Return the option of a setting as `mqadmin` spells it."""
    return f"--{camel_case(setting)}"


def parse_verify(text: object) -> Verify:
    """Return a mode of verification.

    Raises:
        ValueError: it is none.
    """
    if str(text) not in VERIFY_MODES:
        raise ValueError("expected true, ca or false")
    return cast(Verify, str(text))


def parse_flag(name: str, text: str) -> bool:
    """Return the value of a variable that stands for a flag.

    Raises:
        UsageError: it is neither true nor false.
    """
    word = text.strip().lower()
    if word not in (*TRUE_WORDS, *FALSE_WORDS):
        raise UsageError(name, text, "expected true or false")
    return word in TRUE_WORDS
