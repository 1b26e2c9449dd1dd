"""Every run of a small nondeterministic program, one after the other."""


class Choices:
    """What one run chose. ``pick(n)`` gives a number below n; in the course of `explore`, each one in turn."""

    def __init__(self, planned=()):
        self.planned = planned
        self.trail = []

    def pick(self, options):
        at = len(self.trail)
        chosen = self.planned[at] if at < len(self.planned) else 0
        self.trail.append((chosen, options))
        return chosen


def explore(run):
    """Call ``run(choices)`` once for every way to choose; returns how many runs there were.

    A run must be a function of its choices alone. A failing run names its choices, so it can be run again by itself.
    """
    planned, count = [], 0
    while True:
        choices = Choices(planned)
        try:
            run(choices)
        except BaseException as error:
            error.add_note(f"choices: {[chosen for chosen, _ in choices.trail]}")
            raise
        count += 1
        trail = choices.trail
        while trail and trail[-1][0] == trail[-1][1] - 1:
            trail.pop()
        if not trail:
            return count
        planned = [chosen for chosen, _ in trail]
        planned[-1] += 1
