"""The command: `graphpatch`, or `python -m graphpatch`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line. An interrupt while it is imported ends the process without a word."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from graphpatch.cli import main as run

    run()


if __name__ == "__main__":
    main()
