"""Orders."""

from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
    is_paid = models.BooleanField(default=False)
