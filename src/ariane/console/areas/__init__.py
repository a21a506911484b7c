"""Reads and changes of the console, one module per area: view models and forms, without HTTP.

All of them raise these errors, which `web.errors` turns into answers. Docstrings name only further ones.

UsageError, ConfigError       a value of the query or form is invalid, a column unknown, or a confirmation missing
NotFound, RouteNotFound       the topic, group, server, message or account does not exist; the message lists similar names
ServerUnavailable             no broker is registered, or one that is needed does not respond: nothing was changed
PartialFailure, ReplyError    servers rejected a change, or did not respond; others may have executed it
"""
