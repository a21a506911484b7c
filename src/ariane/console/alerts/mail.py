"""Sends a notification by e-mail. `smtplib` blocks, so it runs in a thread."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from ariane.console.alerts import alert_texts
from ariane.console.alerts.channels import DeliveryFailed, MailSecurity, MailTarget, Notification, check_peer

TIMEOUT_S = 15.0  # of connecting, and of each command


async def send_mail(target: MailTarget, notification: Notification, *, timeout_s: float = TIMEOUT_S) -> None:
    """Send a notification.

    Raises:
        DeliveryFailed: the mail server did not accept it. The message contains no password.
    """
    try:
        message = mail_message(target, notification)
        await asyncio.to_thread(_send, target, message, timeout_s)
    except smtplib.SMTPResponseException as error:
        text = error.smtp_error if isinstance(error.smtp_error, str) else error.smtp_error.decode(errors="replace")
        raise DeliveryFailed(
            f"{target.host}: {error.smtp_code} {text[:200]}", is_transient=error.smtp_code < 500
        ) from None
    except smtplib.SMTPRecipientsRefused as error:
        raise DeliveryFailed(f"{target.host} refused {', '.join(error.recipients)}", is_transient=False) from None
    except UnicodeError:
        reason = "host, addresses, user and password may only contain ASCII characters"
        raise DeliveryFailed(f"{target.host}: {reason}", is_transient=False) from None
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or "TLS failed"
        raise DeliveryFailed(f"{target.host}: {reason}", is_transient=False) from None
    except smtplib.SMTPNotSupportedError as error:
        raise DeliveryFailed(f"{target.host}: {error}", is_transient=False) from None
    except (OSError, smtplib.SMTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DeliveryFailed(f"{target.host}:{target.port}: {reason}", is_transient=True) from None


def mail_message(target: MailTarget, notification: Notification) -> EmailMessage:
    """Return the message. `EmailMessage` encodes names of groups and topics and refuses line feeds in headers."""
    message = EmailMessage()
    message["Subject"] = " ".join(alert_texts.summary(notification).split())
    message["From"] = target.sender
    message["To"] = ", ".join(target.recipients)
    message["Date"] = formatdate()
    message["Message-ID"] = make_msgid(domain=target.sender.rpartition("@")[2])
    message["Auto-Submitted"] = "auto-generated"  # keeps automatic replies from answering
    message.set_content(alert_texts.message_text(notification))
    return message


def _send(target: MailTarget, message: EmailMessage, timeout_s: float) -> None:
    context = ssl.create_default_context()
    if target.security is MailSecurity.TLS:
        connection: smtplib.SMTP = smtplib.SMTP_SSL(target.host, target.port, timeout=timeout_s, context=context)
    else:
        connection = smtplib.SMTP(target.host, target.port, timeout=timeout_s)
    with connection as server:
        assert server.sock is not None
        check_peer(server.sock.getpeername()[0])
        if target.security is MailSecurity.STARTTLS:
            server.starttls(context=context)  # an error if the server does not offer it: never in clear text
        if target.user:
            server.login(target.user, target.password)
        server.send_message(message)
