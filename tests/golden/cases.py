"""All golden cases by the name of their row in `tests/table.py`."""

from golden import advantages, objectives, parts, recipes

BY_NAME = advantages.BY_NAME | objectives.BY_NAME | parts.BY_NAME | recipes.BY_NAME
