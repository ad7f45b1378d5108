"""What keeps `sandman up` from starting, as sentences a person can act on.

StartRefused
    raised before any process was started; carries what is wrong and what to do about it
"""

from __future__ import annotations


class StartRefused(Exception):
    """`problem` says what is wrong, `remedy` what to do. Both are shown as they are."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
