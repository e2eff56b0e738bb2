"""Workers: a function over the messages of a group, the loop that feeds it, and tasks."""
