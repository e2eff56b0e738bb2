"""What the streams face is made of: requests to commands, replies to responses, reading, live tails, parking, wakes."""
