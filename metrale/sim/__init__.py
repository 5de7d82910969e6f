"""The simulator: mock device, scenario files, harness, runner, and the public test kit."""
