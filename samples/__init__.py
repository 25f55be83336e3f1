"""What ships with the project: `topics-neox`, the small trained model that `theodolite run` measures by default."""
