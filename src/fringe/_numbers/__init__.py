"""Random draws, double precision everywhere, and blurs."""
