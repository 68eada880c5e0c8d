"""A support desk: an agent that works through customer mails over a real order database.

It owns its shop (tables, data, policy), its mails and its agent; it knows agentrun only through its public face.
"""
