"""The rules: one module for each noun. A rule reads a case, writes down facts and answers; it changes nothing."""
