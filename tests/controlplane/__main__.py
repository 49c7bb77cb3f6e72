"""Build the control plane if needed, and say where it is; 0 also without Go, since tests that need it then skip."""

import shutil
import sys

from tests.controlplane.program import OURS
from tests.helpers.go_programs import GoProgramMissingError


def main() -> int:
    try:
        sys.stdout.write(f"{OURS.path()}\n")
    except GoProgramMissingError as missing:
        sys.stderr.write(f"{missing}\n")
        return 1 if shutil.which("go") else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
