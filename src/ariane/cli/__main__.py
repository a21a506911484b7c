"""`python -m ariane.cli`, what `./ariane` runs."""

from ariane.cli.main import run

run()
