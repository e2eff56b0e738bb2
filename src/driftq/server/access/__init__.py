"""What a request passes before its handler: readiness, web origins, the caller's identity and rights, rates."""
