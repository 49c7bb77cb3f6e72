"""Composition roots: the only code that names concrete adapters, and what the handlers call.

`composition` is one process's set of adapters, whatever the cloud; `aws` makes one from the environment; `batch` runs a
step for what a queue or a schedule delivers; `entry` puts logging and tracing around a handler.
"""
