"""Measurements: `speed/` (how fast), `claims/` (does what the documentation says hold), `common/` (what they share)."""
