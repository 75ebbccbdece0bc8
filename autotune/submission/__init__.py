"""Submission of workers to what starts processes on other machines: Slurm, Kubernetes, ssh."""
