"""`python -m agentrun.cli`: the command line where the script `agentrun` is not on the path."""

from agentrun.cli import main

main()
