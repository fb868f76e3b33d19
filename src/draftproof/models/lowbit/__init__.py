"""Low-bit copies of a target's weights: settings, rounding, calibration and the files they are kept in."""
