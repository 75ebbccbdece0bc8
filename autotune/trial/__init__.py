"""One execution of the trainer: plan, launch below a guard, stop rule, outcome; its folder, the files it protects."""
