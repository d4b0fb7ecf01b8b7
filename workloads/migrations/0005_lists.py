"""An index for the list of what waits for other work: work that depends on nothing is never written to it.

On PostgreSQL it is built while others write; a build that was broken off is begun anew.
"""

from django.db import migrations, models


class AddIndexOnline(migrations.AddIndex):
    """Adds an index, on PostgreSQL without holding up writers."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        # What a build that was broken off has left is not valid.
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
        schema_editor.add_index(model, self.index, concurrently=True)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("workloads", "0004_admin")]

    operations = [
        AddIndexOnline(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("dependency_standing", "met"), _negated=True),
                fields=["state", "admitted"],
                name="workloads_blocked",
            ),
        ),
    ]
