"""The same task in each framework. Each module is what a user of it would write."""
