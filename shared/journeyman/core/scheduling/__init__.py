"""Scheduling: which pods go to which nodes, and which nodes to open for them, at the least price.

`scheduler.solve` is the way in. The order of thought, a module each: `pods` (which), `classes` (collapse), `topology` and
`lowering` (constraints between pods become quotas and caps), `templates`, `daemons`, `offers`, `limits` (what NodePools
offer), `existing` (fill what is there), `market`, `pricing`, `packing`, `opening` (buy the rest), `explain` (why not),
`claims` (the manifest). `requirements` and `taints` are the algebra beneath. `verify` checks the answer and shares none
of it.
"""
