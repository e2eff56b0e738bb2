"""The faces: HTTP in, commands out; replies in, HTTP out."""
