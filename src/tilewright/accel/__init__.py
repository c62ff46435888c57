"""An open tensor processor: its specification, simulators, hardware, driver interface and stream checker."""
