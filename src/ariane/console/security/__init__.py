"""Who may use the console: accounts, sessions, roles, limits of log-ins, headers, and the audit log.

request → SecurityHeadersMiddleware → AccessMiddleware (of `console.web`) → page or API
                                      │ host and origin are this server's (request_checks)
                                      │ session cookie, or Basic authentication for scripts (authentication)
                                      │ CSRF token of unsafe requests, role of the path (permissions)
                                      └ audit entry of unsafe requests (audit_log)
"""
