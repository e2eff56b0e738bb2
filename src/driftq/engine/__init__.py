"""The core and the storage, running: order, time, threads and wake-ups."""
