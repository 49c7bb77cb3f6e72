"""Scheduling: which pods go to which nodes, and which nodes to open for them, at the least price.

`scheduler.solve` is the way in. The order of thought, a room or module each:

* `demand`: what pods ask for; alike ones are a class, and a class has a ladder of preferences.
* `offering`: what can be had, NodePool by NodePool, as columns; `limits` what may still be opened.
* `standing`: what exists, what is free on it; `claims` what a planned node is as a manifest.
* `problem`: all of that put together; `solution`: a plan in the making.
* `domains`: zones and the like for whole classes; `opening` with `packing`: new nodes by price.
* `one_by_one`: Karpenter's own algorithm; `dra`: devices.
* `bulk`, `plans`: how these make a plan, and which plan is best.
* `explaining`: why a pod has no place; `bound`, `gap`: how good the plan is, and what the rules cost.
* `requirements`, `taints`, `arrays`: the algebra beneath.

`verify` checks the answer and shares none of it.
"""
