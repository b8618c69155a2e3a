"""A simulated cluster: a real Kubernetes control plane with GPU nodes that are only objects."""
