"""The steps: each loads the cluster once, and reconciles it in order (`step.run_step`).

`load` is the only module that reads the cluster for a decision, `executor` the only one that writes.
"""
