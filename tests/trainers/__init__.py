"""Small trainers in the style of real ones, each with a project around it; see styles.py."""
