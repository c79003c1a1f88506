"""`python -m diffmask` is the command `diffmask`."""

from diffmask.cli import main

main()
