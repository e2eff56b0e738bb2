"""One module for each noun of the API: a request becomes a command, a reply becomes a response. No rules live here."""
