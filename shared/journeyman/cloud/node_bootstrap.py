"""The parts of user data that clouds share: MIME archives, and the labels and taints with which a node registers.

Restates: karpenter-provider-aws pkg/providers/amifamily/bootstrap/mime/mime.go.
Differs: parts keep their transfer encoding, without which their text would be read as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from email import message_from_string
from email.message import Message
from typing import Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, Taint

SHELL_SCRIPT: Final = 'text/x-shellscript; charset="us-ascii"'
_BOUNDARY: Final = "//"
_IS_MIME: Final = re.compile(r"\s*(MIME-Version|Content-Type):")
_UNREGISTERED: Final = Taint(key=labels.UNREGISTERED_TAINT, effect="NoExecute")


class MimePart(Struct, frozen=True):
    """A part of user data; `encoding` is that of its text in the archive (Content-Transfer-Encoding), empty for plain text."""

    content_type: str
    text: str
    encoding: str = ""


def is_mime(custom: str) -> bool:
    """Whether a user's text starts like a MIME archive."""
    return bool(_IS_MIME.match(custom))


def mime_parts(custom: str, plain_type: str = SHELL_SCRIPT) -> list[MimePart]:
    """Return a user's text as MIME parts. Text that is not MIME is one part of `plain_type`.

    Raises:
        ValueError: It starts like MIME but is not valid.
    """
    if not custom.strip():
        return []
    return _parsed_mime(custom) if is_mime(custom) else [MimePart(plain_type, custom)]


def _parsed_mime(text: str) -> list[MimePart]:
    message: Message = message_from_string(text.lstrip())
    if not message.is_multipart():
        raise ValueError("user data starts like MIME but is not a multipart archive")
    return [
        MimePart(
            part.get("Content-Type", SHELL_SCRIPT), str(part.get_payload()), part.get("Content-Transfer-Encoding", "")
        )
        for part in message.walk()
        if not part.is_multipart()
    ]


def mime_archive(parts: Iterable[MimePart]) -> str:
    """Return the parts as one multipart text; each is encoded as it was."""
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n\n'
    body = "".join(f"--{_BOUNDARY}\n{_headers(part)}\n\n{part.text}\n" for part in parts)
    return f"{head}{body}--{_BOUNDARY}--\n"


def _headers(part: MimePart) -> str:
    encoding = f"\nContent-Transfer-Encoding: {part.encoding}" if part.encoding else ""
    return f"Content-Type: {part.content_type}{encoding}"


def kubelet_labels(claim: NodeClaim, more: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with which the kubelet registers its Node: the NodeClaim's, and `more`.

    The API server rejects labels of the kubernetes.io and k8s.io domains from kubelets; registration adds those.
    """
    all_labels = {**claim.metadata.labels, **more}
    return {key: all_labels[key] for key in sorted(all_labels) if not _is_kubernetes_domain(key)}


def _is_kubernetes_domain(key: str) -> bool:
    domain = key.split("/", 1)[0] if "/" in key else ""
    return any(domain == d or domain.endswith(f".{d}") for d in ("kubernetes.io", "k8s.io"))


def boot_taints(claim: NodeClaim) -> tuple[Taint, ...]:
    """Return the taints with which the Node registers: the claim's and `karpenter.sh/unregistered`."""
    taints = (*claim.spec.taints, *claim.spec.startup_taints)
    has_unregistered = any((t.key, t.effect) == (_UNREGISTERED.key, _UNREGISTERED.effect) for t in taints)
    return taints if has_unregistered else (*taints, _UNREGISTERED)
