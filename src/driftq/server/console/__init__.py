"""The web console: pages in a browser over the public API."""
