"""Log-in by OpenID Connect: the authorization code flow with PKCE, in addition to the console's own accounts.

/login/oidc           → state, nonce and verifier in a cookie → provider's log-in page
/login/oidc/callback  ← code and state → ID token, verified with the provider's keys → role → session
"""
