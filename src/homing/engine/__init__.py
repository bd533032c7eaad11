"""The engine: from a request to a settled notification.

Requests, callbacks and commands come in; store calls and provider calls go out, through the ports of the
core. There is one folder per kind of work: `intake`, `delivery`, `receipts`, `operations`, `upkeep` and
`access`. The engine imports no other package than the core.
"""
