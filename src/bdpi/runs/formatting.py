"""How numbers and times are written, wherever people read them."""


def number(value: float | None) -> str:
    """A return, readable: two digits behind the point for small ones, one for large ones."""
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def duration(seconds: float | None) -> str:
    """``1:05`` or ``2:00:00``."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
