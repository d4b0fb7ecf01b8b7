"""`manage.py workloads_token USER …`: tokens with which programs say who they are."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

MOST_DAYS = 3650


class Command(BaseCommand):
    help = "Issue a token for a user, list its tokens, or revoke them. A token is shown once; its hash alone is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", metavar="USER", help="the user's name")
        parser.add_argument("--days", type=int, default=90, metavar="N", help="how long it holds (90)")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--list", action="store_true", help="say which tokens there are, by their first characters")
        what.add_argument("--revoke", metavar="START", help="revoke the token that begins so")
        what.add_argument("--revoke-all", action="store_true", help="revoke all of the user's tokens")

    def handle(self, *_: Any, **options: Any) -> None:
        if not apps.is_installed("knox"):
            raise CommandError("Tokens are those of django-rest-knox: add 'knox' to INSTALLED_APPS, and migrate.")
        from knox.models import get_token_model

        users = get_user_model()
        user = users._default_manager.filter(**{users.USERNAME_FIELD: options["user"]}).first()
        if user is None:
            raise CommandError(f"There is no user {options['user']}.", returncode=2)
        tokens = get_token_model().objects.filter(user=user)
        if options["list"]:
            for token in tokens.order_by("created"):
                self.stdout.write(_line(token))
        elif options["revoke_all"]:
            self.stdout.write(f"{tokens.delete()[0]} revoked.")
        elif options["revoke"] is not None:
            self._revoke(tokens, options["revoke"])
        else:
            self._issue(get_token_model(), user, options["days"])

    def _issue(self, model: Any, user: Any, days: int) -> None:
        if not 1 <= days <= MOST_DAYS:
            raise CommandError(f"--days is 1 to {MOST_DAYS}: a token that never ends is found some day.")
        row, token = model.objects.create(user, expiry=dt.timedelta(days=days))
        self.stdout.write(token)
        self.stderr.write(f"It holds until {row.expiry:%Y-%m-%d %H:%M %Z}, and is not shown again.")

    def _revoke(self, tokens: Any, start: str) -> None:
        # What is kept in clear is the beginning, by which it is found.
        found = [token for token in tokens if start and token.token_key.startswith(start[: len(token.token_key)])]
        if len(found) != 1:
            raise CommandError(f"{len(found)} of the user's tokens begin so.", returncode=2)
        found[0].delete()
        self.stdout.write("1 revoked.")


def _line(token: Any) -> str:
    until = "for ever" if token.expiry is None else f"until {token.expiry:%Y-%m-%d %H:%M %Z}"
    over = ", over" if token.expiry is not None and token.expiry <= timezone.now() else ""
    return f"{token.token_key}…  since {token.created:%Y-%m-%d %H:%M %Z}, {until}{over}"
