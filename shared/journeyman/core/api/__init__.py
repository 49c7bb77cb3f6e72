"""The API: models of the custom resources, Structs of Kubernetes objects, and tables of metrics and Event reasons.

Models validate and have defaults (`nodepool`, `nodeclaim_schema`, `ec2nodeclass`, `ecsnodeclass`, `acs_ecsnodeclass`,
`ccenodeclass`, `node_disruption`, `offering_state`); the CRDs are generated from them (`crds`). Objects that are read in bulk
are Structs (`objects`). Quantities, durations, conditions, hashes and requirement rules have a module each. This package imports
nothing of scheduling, clouds or steps.
"""
