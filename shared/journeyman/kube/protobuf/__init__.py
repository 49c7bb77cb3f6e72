"""Read lists of Kubernetes' own kinds in the API server's protobuf encoding. Only `journeyman.kube.lists` imports this package.

Compared with JSON: 10,000 pods of 4 kB from a real kube-apiserver (1.36) on the same two busy cores, median of 7 runs:

======================  =======  ========  ==============  ==================  ========
encoding                seconds  own CPU   API server CPU  memory of the list  on the wire
======================  =======  ========  ==============  ==================  ========
JSON, 20 pages (gzip)   3.4      0.45 s    1.43 s          73 MB               3.5 MB
JSON, whole             2.9      0.57 s    0.98 s          108 MB              44.5 MB
protobuf, whole         2.2      0.75 s    0.44 s          16 MB               23.9 MB
======================  =======  ========  ==============  ==================  ========

So a cold read takes 1/1.6 of the time, 1/3 of the API server's CPU and 1/4.7 of the memory that JSON pages take; the process
is 47 MB smaller afterwards. The import of protobuf (0.2 s of its own CPU, once per process, while the server prepares its
response) makes it slower below some 4,000 pods. `make bench-reading` measures it again.

`field_numbers` has the number of each field, `message_classes` creates message classes from them for protobuf's C parser,
`framing` cuts a response into whole fields while it arrives, and `reader` converts the parsed messages to our Structs, a
column at a time. The Structs equal those that msgspec decodes from the same object's JSON. Values that many objects share
are created once.
"""

from __future__ import annotations

from typing import Final

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAGIC: Final = b"k8s\0"
"""The first bytes of a response of that type."""
