"""The history of the database's schema; `database.py` brings a file up to date with it."""
