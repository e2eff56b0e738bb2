"""Django: jobs after a commit, jobs in the same transaction as a row, and a command that runs workers.

pip install driftq django
driftq serve --data ./data
python manage.py migrate
python manage.py order 7          # a row, and a job after its transaction has committed
python manage.py order 8 --outbox # a row and a job in one transaction
python manage.py relay_outbox     # moves jobs from the database to the broker
python manage.py run_workers
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
