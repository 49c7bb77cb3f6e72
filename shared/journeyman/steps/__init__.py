"""The steps. `step.run_step` loads the cluster once and runs a step's reconcilers in order.

Only `load` reads the cluster for a decision, and only `executor` writes.
"""
