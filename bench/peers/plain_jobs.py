"""The no-op job of the peers that find a plain function by its name."""

from peers.base import beat


def nothing(number: int) -> None:
    """Do nothing, and be counted."""
    beat()
