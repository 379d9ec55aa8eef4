"""What torch.optim promises: parts as plain data, options, groups, loading, sharding, precision, GradScaler, replay."""
