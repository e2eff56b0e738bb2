"""What is kept on disk: the journal, the logs and snapshots; and the one interface to the filesystem."""
