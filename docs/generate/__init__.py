"""What the documentation site has besides the pages in docs/: navigation, references, the recipes' pages, pictures."""
