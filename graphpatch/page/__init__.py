"""The page of `graphpatch view`: the document that it draws, and its HTML, CSS and JavaScript.

`view.py` begins: `document.py` says between which tensors, `lines.py` follows the gradient through
each body and writes the table of its lines. In the browser, `page.js` begins: `lines.js`
reads the document, `order.js` and `rows.js` say which rows there are, `lanes.js` lays out the lanes
between them, `list.js` draws what is in sight; `header.js`, `panel.js`, `search.js` and `keys.js`
are what a user meets around it.
"""
