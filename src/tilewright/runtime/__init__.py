"""Floor 2: arrays, artifacts, modules and executors. Sees only `support`: a deployed runtime has no compiler."""
