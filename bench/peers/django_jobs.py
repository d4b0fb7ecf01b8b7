"""The no-op job of the peers that find their jobs by a module's name. Imported once Django is set up."""

from django.tasks import task

from peers.base import beat


@task
def nothing(number: int) -> None:
    """Do nothing, and be counted."""
    beat()
