"""What several kinds of tests share: simulated parts and suites that every implementation of a seam must pass."""
