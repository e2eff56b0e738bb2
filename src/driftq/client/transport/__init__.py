"""HTTP as bytes, the steps of a call without I/O, and the two transports that perform them."""
