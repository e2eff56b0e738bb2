"""The archive: a copy of a broker's history in object storage, from which a data folder can be restored."""
