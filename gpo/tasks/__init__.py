"""Tasks: prompts and how to score what a policy answers."""
