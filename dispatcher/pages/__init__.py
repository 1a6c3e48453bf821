"""The pages of every daemon: templates, live updates, and one module for each page. They need the extra `web`.

site           what all pages share: templates, live updates, errors, forms
table          the list of all pages
page_texts     texts, times, bars and curves
drawing        state machines as SVG, which the report has too
"""
