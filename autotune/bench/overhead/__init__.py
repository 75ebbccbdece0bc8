"""What autotune itself costs."""
