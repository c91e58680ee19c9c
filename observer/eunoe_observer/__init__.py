"""Eunoe's observer: keeps the filter's events and shows live why each message was kept or dropped."""
