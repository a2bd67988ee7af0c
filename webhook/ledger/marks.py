"""Names of the marks on holdings that are being given back."""

import secrets


def new_mark() -> str:
    """A name that no other mark has: nobody can take a later holding for the one that bore it."""
    return secrets.token_hex(8)
