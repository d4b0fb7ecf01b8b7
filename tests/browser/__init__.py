"""The admin and the site in a real browser: Debian's Chromium, moved by Playwright, on a site of its own.

The pages are the same code on each database, so that they are walked on SQLite alone: `tests/run.py` runs this part
once, and says at its end if it could not. Elsewhere `pytest tests/browser` uses SQLite too, whatever DATABASE_URL says.
"""
