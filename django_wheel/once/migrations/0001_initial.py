"""The table of markers."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations: ClassVar = [
        migrations.CreateModel(
            name="Marker",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("until_ms", models.BigIntegerField(db_index=True)),
                ("result", models.BinaryField(null=True)),
            ],
            options={"db_table": "celery_wheel_once"},
        ),
    ]
