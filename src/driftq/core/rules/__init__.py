"""Rules: one module per family of commands. A rule reads the context, records facts and returns a reply; it changes
nothing. Rules do not import each other: what they share is in `core.transitions`."""
