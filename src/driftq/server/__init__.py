"""The server: HTTP requests in, commands out; replies in, HTTP responses out."""
