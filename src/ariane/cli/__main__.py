"""`python -m ariane.cli`, what `./ariane` runs."""

import sys

INTERRUPTED = 130

try:
    from ariane.cli.main import run
except KeyboardInterrupt:  # while modules load
    sys.stderr.write("ariane: interrupted\n")
    sys.exit(INTERRUPTED)

run()
