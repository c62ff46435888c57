"""Programs, models and arrays on devices, whatever their driver."""
