from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("flights", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("flight", models.CharField(max_length=24)),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("paid", "Paid"), ("cancelled", "Cancelled")],
                        default="open",
                        max_length=9,
                    ),
                ),
            ],
        ),
    ]
