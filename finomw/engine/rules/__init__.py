"""What each command does to the store, and what comes out: one function for each command.

The same functions run for a live call and in replay, so a decision cannot be made in two ways.
They read the store and the command and nothing else: no configuration, no clock. A refusal or a
repetition writes nothing. ``calls.py`` has the rules of a call, ``money.py`` those that give or
take outside of calls, ``owners.py`` the rest.
"""
