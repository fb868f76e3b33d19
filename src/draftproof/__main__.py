"""`python -m draftproof` is the command `draftproof`."""

from draftproof.cli.__main__ import main

main()
