"""`hangcheck`, also as `python -m lightning_hangcheck`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt while its modules are imported is no traceback either."""
    try:
        from lightning_hangcheck.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as shells do
    run()


if __name__ == "__main__":
    main()
