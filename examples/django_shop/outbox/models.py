"""Jobs that are committed and not yet at the broker."""

import uuid

from django.db import models


class OutboxJob(models.Model):
    job_id = models.UUIDField(default=uuid.uuid4, unique=True)
    topic = models.CharField(max_length=200)
    task = models.CharField(max_length=200)
    value = models.TextField()
