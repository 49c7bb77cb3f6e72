"""The API: every custom resource as a model, Kubernetes' objects as we read them, and their small algebras.

Models validate and carry defaults (`nodepool`, `nodeclaim`, `ec2nodeclass`, `node_disruption`, `offering_state`); the CRD
files are generated from them (`crds`). Objects read in bulk are Structs (`objects`). Amounts, durations, conditions,
hashes and label rules have a module each. Nothing here knows of scheduling, clouds or steps.
"""
