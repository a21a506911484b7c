"""Entry point of the command `ariane` and of `python -m ariane.cli`, which the script `./ariane` runs."""

import sys

from ariane.errors import MissingPackage
from ariane.extras import naming_extras

FAILED, INTERRUPTED = 1, 130


def run() -> None:
    """Run the command of `sys.argv`. Its modules need the package Typer."""
    try:
        with naming_extras():
            from ariane.cli import main
    except KeyboardInterrupt:  # Ctrl-C while modules load
        sys.stderr.write("Interrupted.\n")
        sys.exit(INTERRUPTED)
    except MissingPackage as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(FAILED)
    main.run()


if __name__ == "__main__":
    run()
