"""The Kubernetes client of functions and forwarder: connections, requests, lists, watches, and access to each kind of cluster.

`connection_pool`, `transport`, `request_budget`, `error_translation`, `json_decoding` and `access.in_cluster` import msgspec and
urllib3 only, because the forwarder runs on them within 64 MiB. `http_store` and the rest read and write typed objects.
"""
