"""Small trainers that ship with autotune."""
