"""The fixtures of ``cli_nodes``, for every test of the command line."""

from __future__ import annotations

from cli_nodes import call, folder, node, shell, shop, ticking

__all__ = ["call", "folder", "node", "shell", "shop", "ticking"]
