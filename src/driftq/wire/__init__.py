"""What travels: shared by server, client and Spark; imports nothing else of ours."""
