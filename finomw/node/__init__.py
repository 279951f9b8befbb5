"""What runs beside requests: the housekeeper.

Nothing here is on the request path; a stopped housekeeper costs room and tidiness, never a call.
"""
