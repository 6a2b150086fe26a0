"""The patience table, defined only here: how long a wait may last, by who could end it."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Seconds since the last progress (busy_factor: a plain number), with their defaults.

    Each field is a setting of the same name, explained in docs/settings.md; `judge.patience` says
    which field applies to which wait.
    """

    suspect_proven_after: float = 3.0
    proven_after: float = 5.0
    suspect_person_after: float = 3.0
    person_after: float = 10.0
    suspect_idle_after: float = 5.0
    idle_after: float = 30.0
    suspect_outside_after: float = 10.0
    suspect_busy_after: float = 10.0
    busy_floor: float = 120.0
    busy_factor: float = 20.0
    suspect_absent_after: float = 10.0
    absent_after: float = 15.0
    stall_timeout: float = 300.0
