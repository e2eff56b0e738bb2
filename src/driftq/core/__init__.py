"""The pure broker: commands in, facts out. No I/O, no clock, no chance of its own."""
