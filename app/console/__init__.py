"""The console: pages for people, drawn on the server and moved by htmx.

It reads the ledger and changes nothing but its own sessions, so that a broken console can never harm a sandbox. What it shows
is drawn by pure functions (`wording`, `chart`, `overview`); what keeps strangers out stands in `origin`, `shield` and `sessions`;
`routes` only connects the two.
"""
