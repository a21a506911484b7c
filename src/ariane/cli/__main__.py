"""Entry point of `python -m ariane.cli`, which the script `./ariane` runs."""

import sys

INTERRUPTED = 130

try:
    from ariane.cli.main import run
except KeyboardInterrupt:  # Ctrl-C while modules load
    sys.stderr.write("Interrupted.\n")
    sys.exit(INTERRUPTED)

run()
