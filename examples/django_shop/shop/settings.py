"""Settings of the example: a database in one file, and two apps."""

import os

SECRET_KEY = "an example"
DEBUG = True
INSTALLED_APPS = ["shop", "outbox"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", "shop.sqlite3")}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
