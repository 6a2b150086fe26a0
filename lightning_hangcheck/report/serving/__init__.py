"""The report in a browser of this machine: `run_pages` makes what `server` hands out."""
