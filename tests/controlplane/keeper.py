"""Run a program, and kill it when standard input ends: `keeper.py PROGRAM FLAG…`.

The control plane that `program.py` builds ends by itself; released programs would outlive a test run that was killed.
"""

import subprocess
import sys
import threading


def main() -> int:
    """Run the program and return its exit status."""
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as program:
        threading.Thread(target=_end_with_input, args=(program,), daemon=True).start()
        return program.wait()


def _end_with_input(program: "subprocess.Popen[bytes]") -> None:
    sys.stdin.buffer.read()
    program.kill()


if __name__ == "__main__":
    sys.exit(main())
