# `make docs` builds the site of the documents and opens it in the browser.
.PHONY: docs
docs:
	bash scripts/setup.sh --dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	.venv/bin/python -m webbrowser site/index.html
