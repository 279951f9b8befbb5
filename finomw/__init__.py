"""finomw charges for API calls inside the API's own process.

The public surface is this module; everything else is the rooms described in the README. What it
offers is imported when it is first asked for: the command line starts without the middleware, and
a system that finomw does not run on is told so in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finomw.asgi.middleware import FinoMiddleware
    from finomw.asgi.state import Call
    from finomw.billing import Billing
    from finomw.engine.engine import health

__version__ = "0.1.0"

__all__ = ["Billing", "Call", "FinoMiddleware", "__version__", "health"]


def __getattr__(name: str) -> object:
    """Import a public name on first use; raises `UnsupportedSystem` where it cannot work."""
    if name not in __all__:
        raise AttributeError(f"module 'finomw' has no attribute {name!r}")
    from finomw.system import require_linux

    require_linux()
    if name == "Billing":
        from finomw.billing import Billing

        return Billing
    if name == "Call":
        from finomw.asgi.state import Call

        return Call
    if name == "health":
        from finomw.engine.engine import health

        return health
    from finomw.asgi.middleware import FinoMiddleware

    return FinoMiddleware
