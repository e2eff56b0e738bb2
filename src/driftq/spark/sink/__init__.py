"""The Spark sink: options, chunks of packed records, staged and direct targets."""
