"""The rule book of placement: which pods may go where, and the only place where counts of placed pods change.

* `topology_rules`: the topology rules of each row: `spread`, `affinity` and `anti_affinity` have one kind of rule each.
* `counters`: the pods that each rule counts, by domain or node.
"""
