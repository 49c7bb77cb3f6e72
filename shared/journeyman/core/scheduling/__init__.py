"""Scheduling: which pods go to which nodes, and which nodes to launch for them, at the least price.

`scheduler.solve` is the entry point. The modules, from the entry point down to the algebra:

* `scheduler`: lets plans compete and returns `results`; `explanation` says why a pod is unschedulable.
* `bulk_scheduling`: plans whole pod classes at once; `sequential` plans pod by pod, as Karpenter does.
* `domain_assignment`, `domain_distribution`, `domain_supply`: topology domains for whole classes.
* `placement`: the topology rules of pods, asked by all of these, and the only place where counts of placed pods change.
* `new_nodes` with `packing` and `instance_type_choice`: new nodes by price; `node_filling`: existing nodes.
* `problem`: what a pass is about; `reserved_placements`: pods that stay on their pending NodeClaims; `limits`.
* `existing_nodes`, `host_constraints`: what is free on nodes, and the rules about one node.
* `pod_classes`, `preferences`, `topology`, `volumes`: what pods require.
* `nodepool_options`, `daemon_overhead`, `nodeclaim_templates`, `offerings`: what can be launched; `dra`: devices.
* `requirements`, `arrays`: the algebra beneath.

`verify` checks the results and shares no code with the solver.
"""
