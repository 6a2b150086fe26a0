"""`python -m lightning_hangcheck` is `hangcheck`."""

from lightning_hangcheck.cli.main import main

if __name__ == "__main__":
    main()
