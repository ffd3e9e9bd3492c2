"""`python -m graphpatch`."""

from __future__ import annotations

from graphpatch.cli import main

if __name__ == "__main__":
    main()
