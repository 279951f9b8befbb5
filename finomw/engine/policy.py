"""Who is blocked: the decision, apart from the mechanism that `store.accounts` carries out.

Judged on ``balance + held``, because money set aside for calls under way has not been spent: a
worst-case hold that settles cheaply must not block. Only a settlement sets the mark, never a
hold; calls under way finish.
"""

from __future__ import annotations

from finomw.money.account import Account


class BelowZero:
    """Blocked is who spent more than there was, until a grant brings the account above zero."""

    def blocks(self, account: Account) -> bool:
        """Say whether a settlement that left the account like this sets the mark."""
        return account.balance + account.held < 0

    def clears(self, account: Account) -> bool:
        """Say whether a grant that left the account like this clears the mark."""
        return account.balance + account.held > 0
