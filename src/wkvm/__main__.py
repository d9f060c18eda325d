"""``python -m wkvm``."""

from wkvm.cli.main import main

main()
