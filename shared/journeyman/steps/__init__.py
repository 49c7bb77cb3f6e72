"""The steps: load → decide → verify → apply. Each is one function of an `RunContext` and a `Trigger`.

`load` is the only part that reads the cluster for a decision, `apply` the only one that carries decisions out.
"""
