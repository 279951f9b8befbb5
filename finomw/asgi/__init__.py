"""The ASGI room: one call at a time, from scope to answer.

Read ``middleware.py`` for what is done once and where a call goes, ``responder.py`` for the story
of one call, ``rules.py`` for what the configuration compiles to.
"""
