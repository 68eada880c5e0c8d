"""Programs that use agentrun as its users do. Nothing in `agentrun` imports them."""
