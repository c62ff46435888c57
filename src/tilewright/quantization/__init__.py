"""Floor 13: models to fewer bits. Calibration, quantisation parameters, which layers to quantise, what it costs."""
