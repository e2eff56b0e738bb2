"""Offline work on a data folder: verify, dump, statistics, truncate the journal at the first damage, salvage records.

    folder_reader  reading a folder without changing it, damaged or in use: frames, damage, the state
    names          topic, partition, path and group for the numbers in facts
    verify         is every byte that matters as it was written?
    statistics     what is in the folder, in numbers
    salvage        every readable record, as NDJSON files
    truncate       cut the journal at the first damage; what is cut is kept aside

Backups are the answer to damage. Truncation and salvage are for a folder that has none.
"""
