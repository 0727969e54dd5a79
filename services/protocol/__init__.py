"""Message types and interfaces between services, one file per receiver.

Only the standard library and pydantic are imported here. Messages between processes are
frozen keyword-only dataclasses; what arrives from outside (YAML, HTTP) is a pydantic
model that forbids unknown keys.
"""
