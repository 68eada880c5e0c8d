"""Other libraries, each in a script of its own, run by the interpreter of an environment that only they share."""
