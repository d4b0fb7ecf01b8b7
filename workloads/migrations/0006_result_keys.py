"""Keys of results whose ids begin with an instant begin with it too, as `result_key_of` makes them from now on.

Of the ids that earlier attempts gave to their results, which were random throughout, one in sixteen looks like that. They
are gone through in parts, each a transaction, while others write; what was done already is passed over. What a process of
the code before stores meanwhile keeps a digest for its key: `workloads_verify` names it, and the way back and forth mends it.
"""

import hashlib
import json
import re
import uuid

from django.db import migrations

IN_TIME = re.compile("[0-9a-f]{12}7[0-9a-f]{19}")
PART = 2_000


def begin_with_the_instant(apps, schema_editor):
    def key_of(row):
        return uuid.UUID(f"{row.result_id[:12]}7{row.result_key.hex[13:]}")

    _change(apps, schema_editor, key_of)


def be_digests(apps, schema_editor):
    admitted = apps.get_model("workloads", "Admitted").objects.using(schema_editor.connection.alias)

    def key_of(row):
        tenant_id = admitted.values_list("tenant_id", flat=True).get(pk=row.record_id)
        text = json.dumps([tenant_id, row.result_id], separators=(",", ":"), ensure_ascii=False)
        return uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16], version=5)

    _change(apps, schema_editor, key_of)


def _change(apps, schema_editor, key_of):
    results = apps.get_model("workloads", "Result").objects.using(schema_editor.connection.alias)
    last = 0
    while part := list(results.filter(pk__gt=last).only("record_id", "result_id", "result_key").order_by("pk")[:PART]):
        changed = []
        for row in part:
            if IN_TIME.fullmatch(row.result_id) and row.result_key != (key := key_of(row)):
                row.result_key = key
                changed.append(row)
        results.bulk_update(changed, ["result_key"], batch_size=500)
        last = part[-1].pk


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("workloads", "0005_lists")]

    operations = [migrations.RunPython(begin_with_the_instant, be_digests, elidable=True)]
