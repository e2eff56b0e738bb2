"""The outbox."""

import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            name="OutboxJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_id", models.UUIDField(default=uuid.uuid4, unique=True)),
                ("topic", models.CharField(max_length=200)),
                ("task", models.CharField(max_length=200)),
                ("value", models.TextField()),
            ],
        ),
    )
