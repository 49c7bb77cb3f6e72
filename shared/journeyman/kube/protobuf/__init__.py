"""Lists of Kubernetes' own kinds in the API server's own encoding, which costs it a third of what JSON does.

`numbers` says which field of a message has which number, `messages` makes classes of that for protobuf's parser, `framing`
cuts an answer while it comes, and `reading` makes our Structs of what the parser finds, by `columns`: equal to what the JSON
of the same object gives. What is the same in many objects is made once, and shared. `messages` and `reading` are imported
only where such an answer is expected: protobuf takes its time to load.
"""

from __future__ import annotations

from typing import Final

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAGIC: Final = b"k8s\0"
"""An answer of that type begins with it."""
