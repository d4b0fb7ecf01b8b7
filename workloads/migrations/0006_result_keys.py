"""Keys of results whose ids begin with an instant begin with it too, as `result_key_of` makes them from now on.

Stop every process of the code before, migrate, then start those of the code of now: a result that either stores or looks
up beside the other would be under a key that the other does not know. Of the ids that earlier attempts gave to their
results, which were random throughout, one in sixteen looks as if it began with an instant.

The results are gone through in parts, each a transaction; what was done already is passed over. A result whose new key is
taken keeps its old one and is told, as `workloads_verify` tells it: that happens only where old and new did run together.
"""

import hashlib
import json
import logging
import re
import uuid

from django.db import migrations

IN_TIME = re.compile("[0-9a-f]{12}7[0-9a-f]{19}")
PART = 2_000

logger = logging.getLogger(__name__)


def begin_with_the_instant(apps, schema_editor):
    def keys_of(rows):
        return {row.pk: uuid.UUID(f"{row.result_id[:12]}7{row.result_key.hex[13:]}") for row in rows}

    _change(apps, schema_editor, keys_of)


def be_digests(apps, schema_editor):
    admitted = apps.get_model("workloads", "Admitted").objects.using(schema_editor.connection.alias)

    def keys_of(rows):
        found = {}
        tenants = dict(admitted.filter(pk__in=[row.pk for row in rows]).values_list("pk", "tenant_id"))
        for row in rows:
            # A result of no workload, as a hand may leave one, keeps the key that it has.
            if row.pk in tenants:
                text = json.dumps([tenants[row.pk], row.result_id], separators=(",", ":"), ensure_ascii=False)
                found[row.pk] = uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=5)
        return found

    _change(apps, schema_editor, keys_of)


def _change(apps, schema_editor, keys_of):
    results = apps.get_model("workloads", "Result").objects.using(schema_editor.connection.alias)
    last = 0
    while part := list(results.filter(pk__gt=last).only("record_id", "result_id", "result_key").order_by("pk")[:PART]):
        last = part[-1].pk
        keys = keys_of([row for row in part if IN_TIME.fullmatch(row.result_id)])
        moved = [row for row in part if keys.get(row.pk, row.result_key) != row.result_key]
        wanted = [keys[row.pk] for row in moved]
        taken = set()
        for start in range(0, len(wanted), 500):
            among = results.filter(result_key__in=wanted[start : start + 500])
            taken |= set(among.values_list("result_key", flat=True))
        changed = []
        for row in moved:
            if keys[row.pk] in taken:
                logger.warning("The key of the result %r is taken: it keeps its own.", row.result_id)
            else:
                taken.add(keys[row.pk])
                row.result_key = keys[row.pk]
                changed.append(row)
        results.bulk_update(changed, ["result_key"], batch_size=500)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("workloads", "0005_lists")]

    operations = [migrations.RunPython(begin_with_the_instant, be_digests, elidable=True)]
