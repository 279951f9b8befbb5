"""Public fakes: what a test puts in the place of time, of the disk, and of the engine's answers.

A clock moved by hand, disks that fail, forget or kill when told to, and a ledger in plain Python
that says what the engine must say. Nothing in the rest of the package imports this room.
"""
