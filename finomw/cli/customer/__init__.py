"""``finomw customer``: who pays, and on which terms.

``add.py`` makes customers, ``show.py`` lists and shows them, ``terms.py`` changes what an owner
agreed with them, and ``delete.py`` closes an account, whose ledger stays true for ever.
"""

from __future__ import annotations

import typer

from finomw.cli.customer import add, delete, show, terms

app = typer.Typer(name="customer", help="Add customers, show them, change and delete them.")

for _verbs in (add, show, terms, delete):
    app.add_typer(_verbs.app)
