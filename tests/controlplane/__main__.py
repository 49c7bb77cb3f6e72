"""Build the control plane if needed, and say where it is."""

import sys

from tests.controlplane.program import OURS
from tests.helpers.go_programs import say_where

if __name__ == "__main__":
    sys.exit(say_where(OURS.path))
