# `make docs` opens the site of the documents in the browser, and builds it again whenever a page changes.
.PHONY: docs
docs:
	bash scripts/setup.sh --dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs serve --open
