"""Time as tests want it."""


class SetClock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1_000.0

    def seconds(self):
        return self.now
