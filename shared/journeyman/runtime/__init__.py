"""Composition roots for the handlers: the only code that names concrete adapters.

`composition` holds the adapters of a process on any cloud; `aws` creates them from the environment; `batch` runs a step for
the messages of a queue or a schedule; `lambda_entry` and `fc_entry` connect it to AWS Lambda and to Function Compute.
"""
