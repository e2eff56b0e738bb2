"""What every kind of settings shares: the loader, quantities with units, and suggestions for misspelt names."""
