"""HTTP handlers, one module for each resource. A request becomes a command, a reply becomes a response."""
