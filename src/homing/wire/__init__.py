"""The request and answer structs of the REST API, which the service and its client share.

A module is a subject of the API. Structs that the engine uses too are in `homing.core`, and the structs here
refer to them. Requests refuse unknown fields. Answers accept unknown fields, so that an older client can read
the answers of a newer service. Imports only `homing.core`.
"""
