"""HTTP calls that the broker makes itself: which addresses they may reach, and the client."""
