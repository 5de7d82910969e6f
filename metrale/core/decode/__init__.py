"""The Decode lane: lane choice, the plain step, its launch, readback and commit, and the lane that runs ahead."""
