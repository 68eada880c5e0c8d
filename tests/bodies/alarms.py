"""A body that dies, and a hook that writes what it is told into the file that ALARMS_FILE names."""

from __future__ import annotations

from agentrun import Context, Fatal, durable, on_dead, shell_command

on_dead(shell_command('cat >> "$ALARMS_FILE"; echo >> "$ALARMS_FILE"'), name="alarms file")


@durable("doomed")
async def doomed(ctx: Context) -> None:
    raise Fatal
