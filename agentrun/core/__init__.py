"""The pure part: words, moves, decisions, errors and records. No input or output, no clock, no database."""
