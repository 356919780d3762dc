from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("flights", "0002_order"),
    ]

    operations = [
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("airline", models.CharField(max_length=2)),
                ("sent_at_ms", models.BigIntegerField(db_index=True)),
                ("ran_at_ms", models.BigIntegerField(null=True)),
            ],
        ),
    ]
