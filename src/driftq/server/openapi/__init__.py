"""The OpenAPI document and the page drawn from it."""
