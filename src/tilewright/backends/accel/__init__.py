"""The open tensor processor: target, driver, lowering to instruction streams."""
