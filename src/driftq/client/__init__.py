"""The client: what a program uses to talk to a broker. Knows the wire and nothing of what is behind it."""
