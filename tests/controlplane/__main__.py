"""Build the control plane if needed, and print its path."""

import sys

from tests.controlplane.program import BUILT
from tests.helpers.go_programs import print_path

if __name__ == "__main__":
    sys.exit(print_path(BUILT.path))
