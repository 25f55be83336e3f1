"""The commands of `theodolite`: each parses, calls, and tells."""
