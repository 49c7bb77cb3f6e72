"""The accepted differences between the in-memory API server and the real one, with the reason why each is harmless.

All other tests in this folder pass on both. A newly found difference is either fixed or listed here, and
`test_differences.py` tests each on both servers.
"""

DIFFERENCES = {
    "images": "scenarios say what a container needs, not what it runs; the simulated kubelet pulls no image",
    "pod admission": "default tolerations, QoS classes and security contexts change nothing that is decided here",
    "not-ready taints": "the simulated kubelet joins a node when it is ready; no simulated controller would take "
    "the taint away",
    "managed fields": "no client here reads them, and they double every object; who owned a field before an object's first "
    "apply is not known",
    "lists of built-in kinds": "an apply replaces them whole, but for conditions, finalizers and owners: only custom "
    "resources are applied",
    "budgets without a status": "the simulated controller counts at once, so no client has to wait for it",
    "bookmarks": "they come as soon as it is quiet, where the real server waits for the last two seconds of a watch",
    "answers to deletions": "always Success, where the real server shows the object that it leaves; clients here read it",
    "kinds of patches": "merge patch and apply are all that is used",
    "replacements": "of custom resources need no version; replacing whole objects is left to tests",
    "what changed in a pod": "the real server shows the difference in Go's words",
    "JSON of another shape": "the real server shows the whole object and Go's types",
    "integers or strings": "of a value that is neither, the real server lists each alternative once more",
    "types in a status": "the real server shortens the path of a value of the wrong type there",
}
